"""Panels of a recording: the rows that rules over ranks ask for, step by step, of all ranks together.

Constants for Arrow's functions, made once.

Handed a plain Python value, pyarrow infers its type each time and tries to import dateutil for it: 0.1 ms where that is
not installed, and a job of many ranks asks tens of thousands of times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hypocenter.detect.group_engine import GroupReads
from hypocenter.detect.law_rows import MADE, PART, USED
from hypocenter.detect.panel import JobHistory, Panel
from hypocenter.diagnose.records import Records
from hypocenter.diagnose.rows_by_step import RowsByStep
from hypocenter.nouns import Place, StepRecord
from hypocenter.record.reader import RecordedRun


def panels_of(
    rows: RowsByStep,
    records: Records,
    *,
    ranks: Sequence[int],
    places: Mapping[int, Place],
    steps: Collection[int] | None = None,
) -> Iterator[Panel]:
    """Yield a panel for each step that any rank recorded, in rising order.

    Args:
        rows: those that `of_ranks` asked for, of all ranks; it is emptied step by step.
        records: step records of all ranks.
        ranks: that are looked at.
        places: where each of them stands.
        steps: that panels are wanted of; all when not given.
    """
    if len(ranks) < 2 and not rows.steps():
        return
    last = records.last_steps()
    by_step: dict[int, dict[int, StepRecord]] = defaultdict(dict)
    for rank, record in records if steps is None else ():
        by_step[record.step][rank] = record
    history = JobHistory()
    for step in sorted({*by_step, *rows.steps()} if steps is None else steps):
        yield Panel(
            step=step,
            table=rows.take(step),
            records=by_step.get(step, {}) if steps is None else records.at_step(step),
            places=places,
            ranks=tuple(ranks),
            last_steps=last,
            history=history,
        )


def among(ranks: Sequence[int], recorded: RecordedRun) -> Mapping[int, Place]:
    """Return where some ranks stand; of a group that is not all among them, as far as it was recorded, nothing: ()."""
    found, others = {rank: recorded.places[rank] for rank in ranks if rank in recorded.places}, set(recorded.ranks)
    others -= set(ranks)
    if not others:
        return recorded.places

    def whole(group: tuple[int, ...]) -> tuple[int, ...]:
        return group if others.isdisjoint(group) else ()

    return {
        rank: replace(place, groups={axis: whole(group) for axis, group in place.groups.items()})
        for rank, place in found.items()
    }


_NEARLY_ALL = 0.75  # of the rows: to leave the others out takes longer than to look past them


def of_ranks(table: Any, reads: Collection[GroupReads]) -> Any:
    """Select the rows of a table or batch that rules over ranks ask for, computed on columns."""
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
        "law": lambda: pc.is_in(table["port"], value_set=pa.array([MADE, PART, USED])),
    }
    found = reduce(pc.or_, (columns[word]() for word in reads))
    return pc.is_valid(table["step"]) if (pc.sum(found).as_py() or 0) > _NEARLY_ALL * len(found) else found


@lru_cache(maxsize=256, typed=True)
def arrow(value: str | int | float) -> pa.Scalar:
    """Return the value as an Arrow scalar."""
    return pa.scalar(value)
