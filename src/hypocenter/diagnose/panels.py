"""Panels of a recording: the rows that rules over ranks ask for, step by step, of all ranks together."""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions when it is imported)

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from hypocenter.detect.group_engine import GroupReads
from hypocenter.detect.panel import JobHistory, Panel
from hypocenter.nouns import Place, StepRecord

if TYPE_CHECKING:
    import pyarrow as pa


class RecordedJob(Protocol):
    """What panels need of an open recording (hypocenter.record.reader)."""

    ranks: list[int]

    @property
    def places(self) -> Mapping[int, Place]:
        """Where each rank stands."""
        ...

    def table(self, rank: int | None = None) -> pa.Table:
        """Readings as columns."""
        ...


def panels_of(
    recorded: RecordedJob, records: Mapping[tuple[int, int], StepRecord], reads: Collection[GroupReads]
) -> Iterator[Panel]:
    """One panel for each step that any rank recorded, in rising order. Nothing for a recording of one rank.

    Args:
        recorded: an open recording.
        records: step records by (rank, step).
        reads: words of `hypocenter.detect.group_engine.GroupReads`.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if len(recorded.ranks) < 2:
        return
    parts = [_filtered(recorded.table(rank), reads) for rank in recorded.ranks]
    table = pa.concat_tables(parts).sort_by([("step", "ascending"), ("rank", "ascending"), ("order", "ascending")])
    by_step: dict[int, dict[int, StepRecord]] = defaultdict(dict)
    last: dict[int, int] = {}
    for (rank, step), record in records.items():
        by_step[step][rank] = record
        last[rank] = max(step, last.get(rank, step))
    history = JobHistory()
    runs = pc.run_end_encode(table["step"].combine_chunks()) if table.num_rows else None
    slices: dict[int, Any] = {}
    if runs is not None:
        start = 0
        for step, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            slices[step] = table.slice(start, end - start)
            start = end
    for step in sorted(by_step.keys() | slices.keys()):
        yield Panel(
            step=step,
            table=slices.get(step, table.slice(0, 0)),
            records=by_step.get(step, {}),
            places=recorded.places,
            ranks=tuple(recorded.ranks),
            last_steps=last,
            history=history,
        )


def _filtered(table: pa.Table, reads: Collection[GroupReads]) -> pa.Table:
    import pyarrow.compute as pc

    columns: dict[GroupReads, Callable[[], Any]] = {
        "digest": lambda: pc.is_valid(table["digest"]),
        "comm": lambda: pc.equal(table["phase"], "comm"),
        "grad": lambda: pc.and_(pc.equal(table["phase"], "grad"), pc.equal(table["port"], "grad")),
        "local": lambda: pc.equal(table["port"], "grad_local"),
        "data": lambda: pc.equal(table["phase"], "data"),
        "scalar": lambda: pc.and_(pc.equal(table["port"], "value"), pc.equal(table["n"], 1)),
        "misuse": lambda: pc.starts_with(table["site"], "misuse."),
    }
    mask = None
    for word in reads:
        mask = columns[word]() if mask is None else pc.or_(mask, columns[word]())
    return table.slice(0, 0) if mask is None else table.filter(mask)
