"""A real recording of few ranks in, one of a job of many out: the same rows, columns at a time, under other names.

A rank at (tp, pp, dp) gets the rows of real rank `dp % n_real`: its layers count on over the stages, weights become
shards over tensor parallelism, and digests are mixed with what tells one rank from another, so that equal stays equal
and different stays different. Steps beyond the real ones repeat a stretch in the middle, with digests of their own.
"""

from __future__ import annotations

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions when it is imported)
import re
import shutil
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hypocenter.nouns import Attempt, Coords, Place
from hypocenter.record.facts_file import FACTS_FILE
from hypocenter.record.layout import rank_directory
from hypocenter.record.place_file import write_place
from hypocenter.record.reader import RecordedRun, open_run
from hypocenter.record.run_file import finish_run, start_run
from hypocenter.record.seal import write_sealed

CYCLE = 20  # steps that are repeated, of the real run
FIRST_REPEATED = 40  # what happens at first steps only is before
_LAYER = re.compile(r"^layers\.(\d+)\.")
_SHARDED = re.compile(r"\.(up|down)\.weight$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """How many there are along each axis; tp runs fastest, pp slowest."""

    tp: int
    pp: int
    dp: int

    @property
    def n_ranks(self) -> int:
        """Of the job."""
        return self.tp * self.pp * self.dp

    def at(self, rank: int) -> tuple[int, int, int]:
        """(tp, pp, dp) of a rank."""
        return rank % self.tp, rank // (self.tp * self.dp), rank // self.tp % self.dp

    def rank_at(self, *, tp: int, pp: int, dp: int) -> int:
        """The rank there."""
        return tp + self.tp * (dp + self.dp * pp)


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What is planted where; None leaves one out. Ranks that do not exist, -1 for none."""

    nan_rank: int = -1  # the last step: its own gradient of `nan_param` is NaN, then that of all its replicas
    nan_param: str = "layers.1.norm.weight"
    drift_rank: int = -1  # its `drift_param` differs from the replicas' from `drift_step` on
    drift_param: str = "layers.2.norm.weight"
    drift_step: int = 0
    lr_rank: int = -1  # another learning rate from `lr_step` on
    lr_step: int = 0
    shared_rank: int = -1  # reads the data of its neighbour along dp
    missing_rank: int = -1  # left nothing
    cut_rank: int = -1  # its file of readings was cut

    @staticmethod
    def six(mesh: Mesh, n_steps: int) -> Faults:
        """Six faults, no two on one rank."""
        last, half = mesh.dp - 1, n_steps // 2 // 10 * 10
        return Faults(
            nan_rank=mesh.rank_at(tp=mesh.tp - 1, pp=0, dp=last // 3),
            drift_rank=mesh.rank_at(tp=0, pp=0, dp=last),
            drift_step=half,
            lr_rank=mesh.rank_at(tp=0, pp=mesh.pp - 1, dp=last // 2),
            lr_step=half + n_steps // 4,  # a learning rate that differed before would explain the drift
            shared_rank=mesh.rank_at(tp=0, pp=0, dp=last // 4),
            missing_rank=mesh.rank_at(tp=mesh.tp - 1, pp=mesh.pp - 1, dp=last),
            cut_rank=mesh.rank_at(tp=0, pp=mesh.pp - 1, dp=0),
        )


@dataclass(frozen=True, kw_only=True)
class Rewriting:
    """A real recording, the job it becomes, and what is wrong with it."""

    source: Path
    mesh: Mesh
    n_steps: int
    faults: Faults = Faults()

    @cached_property
    def run(self) -> RecordedRun:
        """The real recording."""
        return open_run(self.source)

    @cached_property
    def rows(self) -> dict[int, pa.Table]:
        """Readings of each real rank over all steps of the job, and their step in the real run as `cycle`."""
        return {rank: self._long(self.run.table(rank).drop_columns(["rank"])) for rank in self.run.ranks}

    @cached_property
    def records(self) -> dict[int, pa.Table]:
        """The same of step records."""
        return {rank: self._long(self.run.steps(rank).drop_columns(["rank"])) for rank in self.run.ranks}

    def _long(self, table: pa.Table) -> pa.Table:
        """Steps up to FIRST_REPEATED as they are, then CYCLE steps again and again."""
        step = table["step"].to_numpy()
        head = table.filter(pa.array(step < min(FIRST_REPEATED, self.n_steps)))
        again = table.filter(pa.array((step >= FIRST_REPEATED) & (step < FIRST_REPEATED + CYCLE)))
        parts = [head.append_column("cycle", pa.array(np.zeros(head.num_rows, np.int64)))]
        for number in range(max(0, -(-(self.n_steps - FIRST_REPEATED) // CYCLE))):
            steps = pa.array(again["step"].to_numpy() + number * CYCLE)
            part = again.set_column(again.schema.get_field_index("step"), again.schema.field("step"), steps)
            parts.append(part.append_column("cycle", pa.array(np.full(part.num_rows, number, np.int64))))
        whole = pa.concat_tables(parts)
        return whole.filter(pc.less(whole["step"], self.n_steps)).combine_chunks()


def write_job(directory: Path, job: Rewriting, processes: int = 2) -> None:
    """Write the whole recording."""
    start_run(directory, ["torchrun", "program.py"], {"level": "sentinel"}, job.mesh.n_ranks, {"torch": "rewritten"})
    ranks = [rank for rank in range(job.mesh.n_ranks) if rank != job.faults.missing_rank]
    if processes > 1:
        with ProcessPoolExecutor(processes) as pool:
            list(pool.map(partial(write_ranks, directory, job), [ranks[i::processes] for i in range(processes)]))
    else:
        write_ranks(directory, job, ranks)
    finish_run(directory, "finished", 0)


def write_ranks(directory: Path, job: Rewriting, ranks: Sequence[int]) -> None:
    """Write some ranks."""
    for rank in ranks:
        _write_rank(directory, job, rank)


def _write_rank(directory: Path, job: Rewriting, rank: int) -> None:
    tp, pp, dp = job.mesh.at(rank)
    real = dp % len(job.run.ranks)
    place = _place(job.mesh, rank)
    attempt = Attempt(host=place.host, pid=1 + rank % 8, started="2026-01-01T00:00:00+00:00")
    assert not write_place(directory, place, attempt)
    folder = rank_directory(directory, rank)
    shutil.copyfile(rank_directory(job.source, job.run.ranks[real]) / FACTS_FILE, folder / FACTS_FILE)
    rows = _rows_of(job, job.rows[real], rank, tp=tp, pp=pp, dp=dp)
    records = _records_of(job, job.records[real], rank, is_last=pp == job.mesh.pp - 1)
    sealed = write_sealed(rows, folder / f"events-{place.host}-{attempt.pid}.arrow", started_ns=1)
    write_sealed(records, folder / f"steps-{place.host}-{attempt.pid}.arrow", started_ns=1)
    if rank == job.faults.cut_rank:
        sealed.write_bytes(sealed.read_bytes()[: sealed.stat().st_size // 2])


def _place(mesh: Mesh, rank: int) -> Place:
    tp, pp, dp = mesh.at(rank)
    groups = {
        "tp": tuple(mesh.rank_at(tp=i, pp=pp, dp=dp) for i in range(mesh.tp)),
        "pp": tuple(mesh.rank_at(tp=tp, pp=i, dp=dp) for i in range(mesh.pp)),
        "dp": tuple(mesh.rank_at(tp=tp, pp=pp, dp=i) for i in range(mesh.dp)),
    }
    return Place(
        rank=rank, world_size=mesh.n_ranks, local_rank=rank % 8, host=f"node{rank // 8:04d}", device=f"cuda:{rank % 8}",
        device_name="rewritten", serial=f"GPU-{rank:06d}", launcher="torchrun", coords=Coords(tp=tp, pp=pp, dp=dp),
        groups=groups, source="Megatron-Core",
    )  # fmt: skip


def _rows_of(job: Rewriting, rows: pa.Table, rank: int, *, tp: int, pp: int, dp: int) -> pa.Table:
    """The readings of one rank of the job."""
    rows = rows.filter(_of_stage(rows, pp, job.mesh.pp))
    sites = rows["site"].combine_chunks().dictionary_encode()
    names: list[str] = sites.dictionary.to_pylist()
    is_sharded = np.array([bool(_SHARDED.search(name)) for name in names])[sites.indices.to_numpy()]
    port, cycle = rows["port"], rows["cycle"].to_numpy().astype(np.uint64)
    of_data = pc.equal(rows["phase"], "data").to_numpy(zero_copy_only=False)
    of_batch = pc.starts_with(rows["site"], "batch.").to_numpy(zero_copy_only=False)
    data = dp - 1 if rank == job.faults.shared_rank else dp
    own = np.where(of_data, np.where(of_batch, 1 + data, 0), np.where(is_sharded, 1000 * (1 + tp), 0) + (1 << 20) * pp)
    if rank == job.faults.shared_rank:
        rows = _with_batches(rows, job.rows[data % len(job.run.ranks)], of_batch)
    drifted = _where(names, sites, job.faults.drift_param) & pc.equal(rows["phase"], "param").to_numpy(
        zero_copy_only=False
    )
    if rank == job.faults.drift_rank:
        own = own + np.where(drifted & (rows["step"].to_numpy() >= job.faults.drift_step), 1 << 30, 0)
    local = np.isin(port.to_numpy(zero_copy_only=False), ("grad_local", "grad_reduced"))
    own = own + np.where(local, 7919 * (1 + rank), 0)
    mixed = _mixed(own.astype(np.uint64) * np.uint64(1 << 20) + cycle)
    rows = _set(rows, "digest", _xor(rows["digest"].combine_chunks(), mixed))
    rows = _set(rows, "row_digests", _xor_rows(rows["row_digests"].combine_chunks(), mixed))
    placement = pc.if_else(pc.equal(rows["placement"], "dp=R"), _placements(is_sharded), rows["placement"])
    rows = _set(rows, "placement", placement)
    stage = pa.array([_LAYER.sub(lambda m: f"layers.{int(m[1]) + 4 * pp}.", name) for name in names])
    rows = _set(rows, "site", stage.take(sites.indices))
    return _with_nan(job, rows.drop_columns(["cycle"]), rank, names, sites, tp=tp, pp=pp)


def _with_nan(
    job: Rewriting, rows: pa.Table, rank: int, names: list[str], sites: pa.DictionaryArray, *, tp: int, pp: int
) -> pa.Table:
    """The bad gradient: on its rank before the reduction, on all its replicas after it."""
    bad = job.faults.nan_rank
    if bad < 0 or job.mesh.at(bad)[:2] != (tp, pp):
        return rows
    here = _where(names, sites, job.faults.nan_param) & (rows["step"].to_numpy() == job.n_steps - 1)
    port = rows["port"].to_numpy(zero_copy_only=False)
    here &= np.isin(port, ("grad",)) | ((port == "grad_local") & (rank == bad))
    n_nan = np.where(here, 1, rows["n_nan"].to_numpy())
    rows = _set(rows, "sumsq", pa.array(np.where(here, 0.0, rows["sumsq"].to_numpy())))
    if rank == bad and not (here & (port == "grad_local")).any():
        rows = pa.concat_tables([rows, _local_nan(rows, here)])
        n_nan = np.append(n_nan, 1)
    return _set(rows, "n_nan", pa.array(n_nan))


def _local_nan(rows: pa.Table, here: np.ndarray) -> pa.Table:
    """The row that is written of a local gradient that is not finite, at any step."""
    row = rows.filter(pa.array(here)).slice(0, 1)
    return _set(row, "port", pa.array(["grad_local"]))


def _records_of(job: Rewriting, records: pa.Table, rank: int, *, is_last: bool) -> pa.Table:
    step = records["step"].to_numpy()
    if not is_last:
        records = _set(records, "loss", pa.nulls(records.num_rows, pa.float64()))
    if rank == job.faults.lr_rank:
        lr = records["lr"].to_numpy(zero_copy_only=False)
        records = _set(records, "lr", pa.array(np.where(step >= job.faults.lr_step, lr * 1.5, lr)))
    if job.faults.nan_rank >= 0 and job.mesh.at(rank)[:2] == job.mesh.at(job.faults.nan_rank)[:2]:
        at_end = step == job.n_steps - 1
        norm = records["grad_norm"].to_numpy(zero_copy_only=False)
        records = _set(records, "grad_norm", pa.array(np.where(at_end, np.nan, norm)))
        records = _set(records, "n_bad_grads", pa.array(at_end.astype(np.int64)))
    return records.drop_columns(["cycle"])


def _of_stage(rows: pa.Table, pp: int, n_stages: int) -> pa.Array:
    """Only the first stage has the embedding, only the last one head and loss."""
    keep: pa.Array = pc.not_equal(rows["port"], "grad_reduced")  # the mean over other ranks than here
    if pp:
        keep = pc.and_not(keep, pc.starts_with(rows["site"], "embed."))
    if pp < n_stages - 1:
        keep = pc.and_not(keep, pc.or_(pc.starts_with(rows["site"], "head."), pc.equal(rows["phase"], "loss")))
    return keep


def _with_batches(rows: pa.Table, others: pa.Table, of_batch: np.ndarray) -> pa.Table:
    """The batches of another rank in place of its own."""
    theirs = others.filter(pc.starts_with(others["site"], "batch."))
    at = np.zeros(rows.num_rows, np.int64)
    at[of_batch] = np.arange(int(of_batch.sum()))
    for name in ("digest", "row_digests", "shares", "sum", "sumsq", "min", "max", "absmax", "absmin"):
        taken = theirs[name].combine_chunks().take(pa.array(at))
        rows = _set(rows, name, pc.if_else(pa.array(of_batch), taken, rows[name].combine_chunks()))
    return rows


def _placements(is_sharded: np.ndarray) -> pa.Array:
    return pa.array(np.where(is_sharded, "dp=R tp=S(0)", "dp=R tp=R"), pa.string())


def _where(names: list[str], sites: pa.DictionaryArray, name: str) -> np.ndarray:
    if name not in names:
        return np.zeros(len(sites), np.bool_)
    return sites.indices.to_numpy() == names.index(name)


def _set(rows: pa.Table, name: str, column: pa.Array | pa.ChunkedArray) -> pa.Table:
    at = rows.schema.get_field_index(name)
    return rows.set_column(at, rows.schema.field(name), column.cast(rows.schema.field(name).type))


def _mixed(seed: np.ndarray) -> np.ndarray:
    """splitmix64: Steele, Lea, Flood, Fast splittable pseudorandom number generators, 2014. Of 0 it gives 0."""
    x = (seed * np.uint64(0x9E3779B97F4A7C15)).astype(np.uint64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))).view(np.int64)


def _xor(digest: pa.Array, mixed: np.ndarray) -> pa.Array:
    known = digest.is_valid().to_numpy(zero_copy_only=False)
    return pa.array(digest.fill_null(0).to_numpy(zero_copy_only=False) ^ mixed, mask=~known)


def _xor_rows(lists: pa.ListArray, mixed: np.ndarray) -> pa.Array:
    """Digests of rows of a batch carry their place in the lowest 12 bits: it stays."""
    lists = lists.fill_null([]) if lists.null_count else lists
    lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
    values = lists.flatten().to_numpy() ^ (np.repeat(mixed, lengths) & ~np.int64(4095))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))
