"""Panels of a recording: the rows that rules over ranks ask for, step by step, of all ranks together.

Constants for Arrow's functions, made once.

Handed a plain Python value, pyarrow infers its type each time and tries to import dateutil for it: 0.1 ms where that is
not installed, and a job of many ranks asks tens of thousands of times.
"""

from __future__ import annotations

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions when it is imported)
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa

from hypocenter.detect.group_engine import GroupReads
from hypocenter.detect.panel import JobHistory, Panel
from hypocenter.diagnose.records import Records, last_steps
from hypocenter.diagnose.rows_by_step import RowsByStep
from hypocenter.nouns import Place, StepRecord


def panels_of(
    rows: RowsByStep,
    records: Mapping[tuple[int, int], StepRecord],
    *,
    ranks: Sequence[int],
    places: Mapping[int, Place],
    steps: Collection[int] | None = None,
) -> Iterator[Panel]:
    """One panel for each step that any rank recorded, in rising order; of one rank alone, if a rule asks for its rows.

    Args:
        rows: those that `of_ranks` asked for, of all ranks; it is emptied step by step.
        records: step records by (rank, step).
        ranks: of the recording.
        places: where each rank stands.
        steps: that panels are wanted of; all when not given.
    """
    if len(ranks) < 2 and not rows.steps():
        return
    last = last_steps(records)
    by_step: dict[int, dict[int, StepRecord]] = defaultdict(dict)
    for (rank, step), record in records.items() if steps is None else ():
        by_step[step][rank] = record
    history = JobHistory()
    for step in sorted({*by_step, *rows.steps()} if steps is None else steps):
        yield Panel(
            step=step,
            table=rows.take(step),
            records=by_step.get(step, {}) if steps is None else _at(records, step),
            places=places,
            ranks=tuple(ranks),
            last_steps=last,
            history=history,
        )


def _at(records: Mapping[tuple[int, int], StepRecord], step: int) -> Mapping[int, StepRecord]:
    if isinstance(records, Records):
        return records.at_step(step)
    return {rank: record for (rank, of), record in records.items() if of == step}


def of_ranks(table: Any, reads: Collection[GroupReads]) -> Any:
    """Which rows of a table or batch rules over ranks ask for, computed on columns; None: no row."""
    import pyarrow.compute as pc

    columns: dict[GroupReads, Callable[[], Any]] = {
        "digest": lambda: pc.is_valid(table["digest"]),
        "comm": lambda: pc.equal(table["phase"], arrow("comm")),
        "grad": lambda: pc.and_(pc.equal(table["phase"], arrow("grad")), pc.equal(table["port"], arrow("grad"))),
        "local": lambda: pc.or_(
            pc.equal(table["port"], arrow("grad_local")), pc.equal(table["port"], arrow("grad_reduced"))
        ),
        "data": lambda: pc.equal(table["phase"], arrow("data")),
        "scalar": lambda: pc.and_(pc.equal(table["port"], arrow("value")), pc.equal(table["n"], arrow(1))),
        "misuse": lambda: pc.starts_with(table["site"], "misuse."),
        "sdc": lambda: pc.equal(table["site"], arrow("sdc")),
        "law": lambda: pc.or_(pc.equal(table["port"], arrow("grad_made")), pc.equal(table["port"], arrow("grad_used"))),
    }
    mask: Any = None
    for word in reads:
        mask = columns[word]() if mask is None else pc.or_(mask, columns[word]())
    return mask


@lru_cache(maxsize=256, typed=True)
def arrow(value: str | int | float) -> pa.Scalar:
    """The value as an Arrow scalar."""
    return pa.scalar(value)
