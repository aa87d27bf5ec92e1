"""Rows of several ranks as rows of logical tensors, so that a run of many ranks compares with one of few.

    shards, summands, copies   put together as their placements say (diagnose.logical)
    data-parallel ranks        each has the mean loss of its own samples: the job's loss is the mean of theirs, and what
                               a rank has as gradient of an activation is as many times the job's as there are ranks
    pipeline stages            what goes into a later stage, and comes out of an earlier one, is inside the model
    numbers of all ranks       that are the same everywhere (learning rate) are one number

What cannot be put together keeps a row for each rank (`lane`), or says that it cannot be compared (`is_bound`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hypocenter.diagnose import logical
from hypocenter.nouns import Place

COPIES_AGREE_TO = 2.0**-8  # relative, of the norm: copies of an activation that are further apart are no copies
_SAME_FACTOR = 1e-4  # relative: norms are sums in float32
_STAGE = 1 << 40  # between the orders of two pipeline stages: more than rows of a step
_KEY = ("step", "microbatch", "phase", "site", "port", "call", "op", "replay")
_VALUES = ("n", "n_nan", "n_posinf", "n_neginf", "min", "max", "absmax", "sum", "sumsq")


@dataclass(slots=True)
class Found:
    """What was seen while rows were put together, for the notes."""

    n_disagree: int = 0  # copies that are none
    n_incomplete: int = 0  # shards missing
    has_uneven_batches: bool = False
    n_mean_of: int = 1  # data-parallel ranks of whose losses the mean is taken
    sites: set[str] = field(default_factory=set[str])  # that cannot be compared

    def notes(self) -> list[str]:
        """Return the notes, one line each."""
        notes: list[str] = []
        if self.n_mean_of > 1:
            notes.append(
                f"the loss of {self.n_mean_of} data-parallel ranks is the mean of theirs; gradients of activations are "
                f"divided by {self.n_mean_of}"
            )
        if self.has_uneven_batches:
            notes.append("data-parallel ranks have batches of different sizes: activations compare by sums alone")
        if self.n_disagree:
            notes.append(f"{self.n_disagree:,} values that ranks should have in common differ between them")
        if self.n_incomplete:
            notes.append(f"{self.n_incomplete:,} values are not there in full: ranks are missing")
        return notes


def of_job(
    table: pa.Table, places: Mapping[int, Place], *, histograms: bool = False, found: Found | None = None
) -> pa.Table:
    """Merge the rows of all ranks to rows of the job, with columns `lane` and `is_bound`.

    Args:
        table: readings in columns of logical.READS, and sketch, digest, literal_inf.
        places: where ranks stand.
        histograms: put them together too.
        found: takes what there is to note.
    """
    found = found if found is not None else Found()
    table = _in_stages(_with_scalars(logical.with_placements(table), places), places)
    table, uneven = _evened(table)
    found.has_uneven_batches |= bool(uneven)
    rows = logical.merged(table, places, histograms=histograms, sketches=True, are_sketches_of_shards=True)
    rows = _with_bounds(rows, uneven, found)
    rows = _with_lanes(_scaled(rows, places, found))
    return _with_norms(rows, _clipped(table))


def _with_scalars(table: pa.Table, places: Mapping[int, Place]) -> pa.Table:
    """Set the placement of losses: summands over ranks that see other data, copies over the others."""
    is_loss = pc.and_(pc.equal(table["phase"], "loss"), pc.equal(table["placement"], ""))
    if not pc.any(is_loss).as_py():
        return table
    of = {rank: _placement_of_loss(place) for rank, place in places.items()}
    texts = pa.array([of.get(rank, "") for rank in table["rank"].to_pylist()], pa.string())
    return _replaced(table, "placement", pc.if_else(is_loss, texts, table["placement"]))


def _placement_of_loss(place: Place) -> str:
    kinds = {"dp": "P", "cp": "P", "tp": "R"}
    return " ".join(f"{axis}={kind}" for axis, kind in kinds.items() if len(place.groups.get(axis, ())) > 1)


def _in_stages(table: pa.Table, places: Mapping[int, Place]) -> pa.Table:
    """Number the rows in the order of pipeline stages; drop what one stage only hands to the next."""
    stage = {rank: place.coords.pp or 0 for rank, place in places.items()}
    last = max(stage.values(), default=0)
    if not last:
        return table
    own = np.array([stage.get(rank, 0) for rank in table["rank"].to_pylist()], np.int64)
    is_backward = pc.equal(table["phase"], "backward").to_numpy(zero_copy_only=False)
    place = np.where(is_backward, last - own, own)
    table = _replaced(table, "order", pa.array(table["order"].to_numpy() + place * _STAGE))
    is_root = pc.and_(
        pc.equal(table["site"], ""), pc.is_in(table["phase"], value_set=pa.array(["forward", "backward"]))
    )
    port = pc.replace_substring_regex(table["port"], "^grad_", "")
    is_in = pc.starts_with(port, "in").to_numpy(zero_copy_only=False)
    inner = is_root.to_numpy(zero_copy_only=False) & np.where(is_in, own > 0, own < last)
    return table.filter(pa.array(~inner))


def _evened(table: pa.Table) -> tuple[pa.Table, set[int]]:
    """Drop sketches of activations in steps whose data-parallel ranks have uneven batches; return these steps too."""
    is_cut = pc.and_(
        pc.is_in(table["phase"], value_set=pa.array(["forward", "backward"])),
        pc.match_substring(table["placement"], "dp=S"),
    )
    cut = table.filter(is_cut).select([*_KEY, "n"])
    if not cut.num_rows:
        return table, set()
    sizes = cut.group_by(list(_KEY)).aggregate([("n", "min"), ("n", "max")])
    uneven = set(sizes.filter(pc.not_equal(sizes["n_min"], sizes["n_max"]))["step"].to_pylist())
    if uneven:
        is_uneven = pc.and_(is_cut, pc.is_in(table["step"], value_set=pa.array(sorted(uneven))))
        nothing = pa.nulls(table.num_rows, table["sketch"].type)
        table = _replaced(table, "sketch", pc.if_else(is_uneven, nothing, table["sketch"]))
    return table, uneven


def _with_bounds(rows: pa.Table, uneven: set[int], found: Found) -> pa.Table:
    """Set `is_bound` of rows that cannot be compared, and drop their sketches; added-up scalars are exact."""
    phase = np.array(rows["phase"].to_pylist(), np.str_)
    is_activation = np.isin(phase, ("forward", "backward"))
    is_apart = is_activation & (rows["replicas_spread"].to_numpy() > COPIES_AGREE_TO)
    is_cut = ~rows["is_complete"].to_numpy(zero_copy_only=False)
    of_mean = np.isin(rows["step"].to_numpy(), list(uneven)) & np.isin(phase, ("backward", "loss"))
    nothing = is_apart | is_cut | of_mean
    found.n_disagree += int(is_apart.sum())
    found.n_incomplete += int(is_cut.sum())
    is_bound = rows["is_bound"].to_numpy(zero_copy_only=False) | nothing
    rows = _replaced(rows, "sketch", pc.if_else(pa.array(nothing), pa.nulls(len(nothing), rows["sketch"].type),
                                                rows["sketch"]))  # fmt: skip
    is_exact = is_bound & ~nothing & (rows["n"].to_numpy() == 1)
    total = pc.fill_null(rows["sum"], 0.0).to_numpy()
    for name, values in (("absmax", np.abs(total)), ("sumsq", total**2), ("min", total), ("max", total)):
        rows = _replaced(rows, name, pc.if_else(pa.array(is_exact), pa.array(values), rows[name]))
    return _replaced(rows, "is_bound", pa.array(is_bound & ~is_exact))


def _scaled(rows: pa.Table, places: Mapping[int, Place], found: Found) -> pa.Table:
    """Scale losses and gradients of activations to those of the mean over data-parallel ranks."""
    texts = rows["placement"].to_pylist()
    phases = rows["phase"].to_pylist()
    sizes = {rank: _n_means(place) for rank, place in places.items()}
    size = np.ones(rows.num_rows)
    for i, (phase, text, rank) in enumerate(zip(phases, texts, rows["rank"].to_pylist(), strict=True)):
        if (
            (phase == "backward" and ("dp=S" in text or "dp=P" in text))
            or (phase in ("loss", "forward") and "dp=P" in text)
            or (phase == "loss" and "cp=P" in text)
        ):
            size[i] = sizes.get(rank, 1)
    if (size == 1).all():
        return rows
    found.n_mean_of = max(found.n_mean_of, int(size.max()))
    for name, power in (("min", 1), ("max", 1), ("absmax", 1), ("sum", 1), ("sumsq", 2)):
        values = pc.fill_null(rows[name], float("nan")).to_numpy() / size**power
        rows = _replaced(rows, name, pa.array(values, pa.float64(), from_pandas=True))
    column = rows["sketch"].combine_chunks()
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    flat = column.flatten().to_numpy() / np.repeat(size, lengths).astype(np.float32)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat, pa.float32()))
    known = pc.if_else(column.is_valid(), lists, pa.nulls(len(column), lists.type))
    return _replaced(rows, "sketch", known)


def _n_means(place: Place) -> int:
    return max(1, len(place.groups.get("dp", ()))) * max(1, len(place.groups.get("cp", ())))


def _with_lanes(rows: pa.Table) -> pa.Table:
    """Give rows of one key that stay several a lane each, one per rank; when all are equal one row is kept."""
    keys = rows.select(list(_KEY)).append_column("at", pa.array(np.arange(rows.num_rows)))
    several = keys.group_by(list(_KEY)).aggregate([("at", "list"), ("at", "count")])
    several = several.filter(pc.greater(several["at_count"], 1))
    lane = np.zeros(rows.num_rows, np.int64)
    kept = np.ones(rows.num_rows, np.bool_)
    rank = rows["rank"].to_numpy()
    values = [np.nan_to_num(pc.fill_null(rows[name].cast(pa.float64()), np.inf).to_numpy()) for name in _VALUES]
    values += [pc.fill_null(rows["digest"], 0).to_numpy()]
    for at in several["at_list"].to_pylist():
        if len(set(rank[at].tolist())) == len(at) and all((column[at] == column[at[0]]).all() for column in values):
            kept[at[1:]] = False
        else:
            lane[at] = rank[at]
    return rows.append_column("lane", pa.array(lane)).filter(pa.array(kept))


def _with_norms(rows: pa.Table, clipped: Mapping[int, float]) -> pa.Table:
    """Put the norm of all gradients of the job in place of the norms that each rank knows of its own parts."""
    is_norm = pc.and_(pc.equal(rows["site"], "grad_norm"), pc.equal(rows["phase"], "grad"))
    several = rows.filter(pc.and_(is_norm, pc.greater(rows["lane"], 0)))
    for step in set(several["step"].to_pylist()) & clipped.keys():
        norm = _norm_of_job(rows.filter(pc.equal(rows["step"], step)))
        if norm is None:
            continue
        norm /= clipped[step]
        here = pc.and_(is_norm, pc.equal(rows["step"], step))
        first = pc.and_(here, pc.equal(rows["lane"], 0))
        for name, value in (("min", norm), ("max", norm), ("absmax", norm), ("sum", norm), ("sumsq", norm**2)):
            rows = _replaced(rows, name, pc.if_else(first, pa.scalar(value), rows[name]))
        keep = pc.or_(pc.invert(here), first)
        rows, is_norm = rows.filter(keep), is_norm.filter(keep)
    return rows


def _norm_of_job(rows: pa.Table) -> float | None:
    """Return the norm of all gradients at the update; None when they are not known in full."""
    grads = _gradients(rows)
    is_known = not (pc.any(grads["is_bound"]).as_py() or pc.any(pc.greater(grads["lane"], 0)).as_py())
    return float(np.sqrt(pc.sum(grads["sumsq"]).as_py())) if is_known and grads.num_rows else None


def _clipped(table: pa.Table) -> dict[int, float]:
    """Return by step the factor of clipping; steps at which ranks saw different factors are left out."""
    of = ["step", "rank"]
    after = _gradients(table).group_by(of).aggregate([("sumsq", "sum")])
    before = table.filter(pc.and_(pc.equal(table["site"], "grad_norm"), pc.equal(table["phase"], "grad")))
    both = before.select([*of, "sum"]).join(after, of).to_pylist()
    factors: dict[int, list[float]] = {}
    for row in both:
        if row["sum"] and row["sumsq_sum"]:
            factors.setdefault(row["step"], []).append(row["sumsq_sum"] ** 0.5 / row["sum"])
    return {step: each[0] for step, each in factors.items() if max(each) - min(each) <= _SAME_FACTOR * max(each)}


def _gradients(rows: pa.Table) -> pa.Table:
    return rows.filter(pc.and_(pc.equal(rows["phase"], "grad"), pc.equal(rows["port"], "grad")))


def shape_of(shape: list[int], placement: str, n: int, place: Place | None) -> list[int]:
    """Return the shape of a logical tensor from a part's shape; [n] where that does not fit the number of elements."""
    if int(np.prod(shape, dtype=np.int64)) == n:
        return shape
    whole = list(shape)
    for axis, _, kind in (word.partition("=") for word in placement.split()):
        if kind.startswith("S(") and place is not None and 0 <= (dim := int(kind[2:-1])) < len(whole):
            whole[dim] *= max(1, len(place.groups.get(axis, ())))
    return whole if int(np.prod(whole, dtype=np.int64)) == n else [n]


def _replaced(table: pa.Table, name: str, column: Any) -> pa.Table:
    return table.set_column(table.schema.get_field_index(name), name, column)
