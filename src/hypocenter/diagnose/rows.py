"""Rows of a recording as the rules want them: by rank and step, and only the readings that some rule looks at."""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions when it is imported)

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hypocenter.detect.engine import LARGE_HALF, Reads
from hypocenter.detect.group_engine import GroupReads
from hypocenter.detect.peaks import NEAR_LIMIT
from hypocenter.detect.replica_rows import BATCH_PREFIX
from hypocenter.diagnose.panels import arrow, of_ranks
from hypocenter.diagnose.rows_by_step import RowsByStep
from hypocenter.nouns import Place, Reading, Run, StepRecord
from hypocenter.record.whereabouts import Whereabouts

if TYPE_CHECKING:
    import pyarrow as pa

MANY_RANKS = 16  # from here on rows that tell nothing new are left out
FEW_BAD = 4  # gradients that are not finite, of one step of one rank: a rule needs to know whether it is only one
# ports that begin so are for rules over ranks alone
_OVER_RANKS = ("replica", "grad_local", "grad_reduced", "grad_made", "grad_used")


class Recorded(Protocol):
    """What a diagnosis needs of an open recording (hypocenter.record.reader)."""

    directory: Path
    run: Run
    ranks: list[int]

    @property
    def problems(self) -> list[str]:
        """What is missing or damaged."""
        ...

    @property
    def attempts(self) -> list[str]:
        """What is to be said of ranks that were started again."""
        ...

    @property
    def places(self) -> Mapping[int, Place]:
        """Where each rank stands."""
        ...

    @property
    def whereabouts(self) -> Mapping[int, Whereabouts]:
        """Where each rank was last."""
        ...

    @property
    def earlier_whereabouts(self) -> Mapping[int, Mapping[int, Whereabouts]]:
        """The same of earlier attempts, by attempt."""
        ...

    def table(self, rank: int | None = None) -> pa.Table:
        """Readings as columns."""
        ...

    def step_records(self) -> list[tuple[int, StepRecord]]:
        """Every (rank, step record)."""
        ...

    def evidence_files(self) -> list[tuple[int, Path]]:
        """Every (rank, path of an evidence.json)."""
        ...


@dataclass(slots=True, kw_only=True)
class Step:
    """One step of one rank."""

    rank: int
    step: int
    record: StepRecord | None = None
    readings: list[Reading] = field(default_factory=list)


def steps_of(
    recorded: Recorded, reads: Collection[Reads], aside: Collection[GroupReads] = (), by_step: RowsByStep | None = None
) -> Iterator[Step]:
    """Rank by rank, the steps in rising order, each with its record and the readings that are asked for.

    Args:
        recorded: an open recording.
        reads: words of `hypocenter.detect.engine.Reads`.
        aside: words of `GroupReads`: rows of these are put on the by_step in the same reading of the files.
        by_step: takes them; not needed for a recording of one rank, unless `aside` asks for rows of it.
    """
    from hypocenter.record.schema import readings_from

    records: dict[int, list[StepRecord]] = defaultdict(list)
    for rank, record in recorded.step_records():
        records[rank].append(record)
    by_step = by_step if len(recorded.ranks) > 1 or aside else None
    whole = bad_steps(recorded) if recorded.run.imported is not None and "imported" in reads else None
    reads = frozenset(reads) - {"imported"}
    over = aside if by_step is not None else ()
    for rank, table in scanned(recorded, lambda batch: _wanted(batch, reads, over, whole)):
        if by_step is not None:
            by_step.put(_only(table, of_ranks(table, aside)))
        found: dict[int, Step] = {}
        for record in records[rank]:
            known = found.get(record.step)
            both = record if known is None or known.record is None else _merged(known.record, record)
            found[record.step] = Step(rank=rank, step=record.step, record=both)
        own = _only(table, _of_rank(table, reads, whole))
        if len(recorded.ranks) >= MANY_RANKS:
            own = without_repeats(own, {step: at.record.n_bad_grads for step, at in found.items() if at.record})
        for reading in readings_from(own):
            found.setdefault(reading.step, Step(rank=rank, step=reading.step)).readings.append(reading)
        yield from (found[step] for step in sorted(found))


def without_repeats(table: pa.Table, n_bad: Mapping[int, int]) -> pa.Table:
    """Without most of the rows that only say of one more gradient's norm that it was not finite.

    After a NaN every gradient of every rank has one at every step. Of steps whose records count them FEW_BAD stay.

    Args:
        table: the rows for rules over one rank.
        n_bad: how many gradients the step's record says were not finite.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    is_norm = pc.and_(pc.equal(table["phase"], arrow("grad")), pc.equal(table["port"], arrow("grad")))
    is_norm = pc.and_(is_norm, pc.equal(table["n_hist"], arrow(0)))
    at = np.flatnonzero(is_norm.to_numpy(zero_copy_only=False))
    step = table["step"].to_numpy()[at]
    order = np.argsort(step, kind="stable")
    starts = np.flatnonzero(np.diff(step[order], prepend=-1))
    number = np.arange(len(at)) - np.repeat(starts, np.diff(np.append(starts, len(at))))
    is_counted = np.array([n_bad.get(int(s), 0) >= FEW_BAD for s in step[order]], dtype=np.bool_)
    keep = np.ones(table.num_rows, dtype=np.bool_)
    keep[at[order][(number >= FEW_BAD) & is_counted]] = False
    return table.filter(pa.array(keep)) if not keep.all() else table


def scanned(recorded: Recorded, where: Callable[[Any], Any]) -> Iterator[tuple[int, pa.Table]]:
    """(rank, rows that pass) of each rank: as the files are read where the recording can, else from whole tables.

    Args:
        where: takes a table or a batch, gives booleans or None for no row.
    """
    scan = getattr(recorded, "scan", None)
    if scan is not None:
        yield from scan(lambda batch: _mask(batch, where(batch)))
        return
    for rank in recorded.ranks:
        table = recorded.table(rank)
        yield rank, _only(table, where(table))


def _mask(batch: Any, mask: Any) -> Any:
    import pyarrow as pa

    return pa.repeat(pa.scalar(False), batch.num_rows) if mask is None else mask


def _only(table: pa.Table, mask: Any) -> pa.Table:
    return table.slice(0, 0) if mask is None else table.filter(mask)


def _wanted(table: Any, reads: Collection[Reads], aside: Collection[GroupReads], whole: Any) -> Any:
    import pyarrow.compute as pc

    own, others = _of_rank(table, reads, whole), of_ranks(table, aside)
    if own is None or others is None:
        return others if own is None else own
    return pc.or_(own, others)


def _merged(first: StepRecord, second: StepRecord) -> StepRecord:
    """One record of a step in which several optimizers updated: whatever went wrong in one of them is kept."""
    is_bad = first.loss is not None and not math.isfinite(first.loss)
    return replace(
        second,
        n_microbatches=first.n_microbatches + second.n_microbatches,
        loss=first.loss if is_bad or second.loss is None else second.loss,
        grad_norm=first.grad_norm if not _finite(first.grad_norm) else second.grad_norm,
        loss_scale=first.loss_scale if second.loss_scale is None else second.loss_scale,
        skipped=first.skipped or second.skipped,
        n_bad_grads=first.n_bad_grads + second.n_bad_grads,
        finding=first.finding or second.finding,
    )


def _finite(value: float | None) -> bool:
    return value is None or math.isfinite(value)


def extent(recorded: Recorded) -> tuple[int, int]:
    """(how many different sites the readings name, how many rows there are: readings and step records)."""
    import pyarrow.compute as pc

    names = getattr(recorded, "site_names", None)
    if names is not None:
        return len(names), int(getattr(recorded, "n_rows"))  # noqa: B009
    table = recorded.table()
    return int(pc.count_distinct(table["site"]).as_py()), table.num_rows + len(recorded.step_records())


def bad_steps(recorded: Recorded) -> Any:
    """Steps of an imported run in which something is not finite: all their rows are wanted, to follow it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = [pc.unique(table["step"]) for _, table in scanned(recorded, _is_nonfinite) if table.num_rows]
    return pc.unique(pa.concat_arrays(found)) if found else pa.array([], pa.int64())


def _is_nonfinite(table: Any) -> Any:
    import pyarrow.compute as pc

    return pc.greater(pc.add(pc.add(table["n_nan"], table["n_posinf"]), table["n_neginf"]), arrow(0))


def holds_values(recorded: Recorded) -> bool:
    """Whether any reading tells of values: of imported runs some hold names, or checksums, alone."""
    return any(table.num_rows for _, table in scanned(recorded, _tells))


def _tells(table: Any) -> Any:
    import pyarrow.compute as pc

    found: Any = pc.is_valid(table["min"])
    for name in ("n_nan", "n_posinf", "n_neginf"):
        found = pc.or_(found, pc.greater(table[name], arrow(0)))
    return found


def _of_rank(table: Any, reads: Collection[Reads], whole: Any = None) -> Any:
    """Which rows of a table some of these words of `detect.engine.Reads` mean; None: no row."""
    import pyarrow.compute as pc

    columns: dict[Reads, Callable[[], Any]] = {
        "nonfinite": lambda: _is_nonfinite(table),
        "scalar": lambda: pc.equal(table["port"], arrow("value")),
        "scaler": lambda: pc.equal(table["phase"], arrow("scaler")),
        "optimizer": lambda: pc.equal(table["phase"], arrow("optimizer")),
        "large-half": lambda: pc.and_(
            pc.equal(table["dtype"], arrow("float16")), pc.greater(table["absmax"], arrow(LARGE_HALF))
        ),
        "half-grad": lambda: pc.and_(
            pc.and_(pc.equal(table["dtype"], arrow("float16")), pc.greater(table["n_hist"], arrow(0))),
            pc.or_(pc.equal(table["phase"], arrow("backward")), pc.equal(table["phase"], arrow("grad"))),
        ),
        "near-limit": lambda: _near_limit(table),
        "imported": lambda: pc.not_equal(pc.fill_null(table["lacks"], ""), arrow("")),
        "zero": lambda: pc.and_(pc.greater(table["n_hist"], arrow(0)), pc.equal(table["n_zero"], table["n_hist"])),
        "batch": lambda: pc.and_(pc.equal(table["phase"], arrow("data")), pc.starts_with(table["site"], BATCH_PREFIX)),
        "all": lambda: pc.is_valid(table["step"]),
    }
    mask: Any = None
    for word in reads:
        mask = columns[word]() if mask is None else pc.or_(mask, columns[word]())
    if whole is not None and len(whole):
        of_step = pc.is_in(table["step"], value_set=whole)
        mask = of_step if mask is None else pc.or_(mask, of_step)
    for prefix in _OVER_RANKS if mask is not None else ():
        mask = pc.and_not(mask, pc.starts_with(table["port"], prefix))
    return mask


def _near_limit(table: Any) -> Any:
    """Readings within NEAR_BITS of their format's largest number; formats that do not occur cost nothing."""
    import pyarrow.compute as pc

    mask: Any = pc.equal(table["dtype"], arrow(""))
    for dtype in pc.unique(table["dtype"]).to_pylist():
        if dtype in NEAR_LIMIT:
            large = pc.greater(table["absmax"], arrow(NEAR_LIMIT[dtype]))
            mask = pc.or_(mask, pc.and_(pc.equal(table["dtype"], arrow(dtype)), large))
    return mask
