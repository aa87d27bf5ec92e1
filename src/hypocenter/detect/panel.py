"""What a rule over ranks sees: one step of all ranks, in columns, for there may be thousands of ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any

from hypocenter.nouns import Coords, Place, Reading, StepRecord

if TYPE_CHECKING:
    import pyarrow as pa


OF_ONE_RANK = (
    "names", "op", "recompute", "replay", "literal_inf", "lacks", "source_file", "source_line", "source_text",
    "source_function", "n_hist", "n_zero", "n_subnormal", "absmin", "hist_first", "hist", "shares",
)  # fmt: skip
"""Columns that tell nothing of whether ranks are alike."""


@dataclass(slots=True, kw_only=True)
class JobHistory:
    """What rules over ranks remember from one step to the next: by code of the rule, whatever it likes."""

    notes: dict[str, dict[Any, Any]] = field(default_factory=lambda: defaultdict(dict))
    groups: dict[str, list[tuple[int, ...]]] = field(default_factory=dict)  # by axis: places do not change


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One step of ranks, as a table.

    `table` has the columns of record.schema.READINGS and `rank` (int32): the rows that some rule over ranks asked for,
    of all of them, rank by rank. Rules asked="unlike" do without the columns OF_ONE_RANK. Only look at columns
    (pyarrow.compute, NumPy): a panel of a large job has 10^5 rows.
    """

    step: int
    table: pa.Table
    records: Mapping[int, StepRecord] = field(default_factory=dict)  # by rank: only ranks that completed this step
    places: Mapping[int, Place] = field(default_factory=dict)  # by rank; a rank without rank.json is missing
    ranks: tuple[int, ...] = ()  # that are looked at: of a group that is not all among them places say ()
    last_steps: Mapping[int, int] = field(default_factory=dict)  # by rank: its last completed step in the recording
    history: JobHistory = field(default_factory=JobHistory)
    asked: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)  # answers of `where`, and others

    def coords(self, rank: int) -> Coords:
        """Return where a rank stands; empty when that is not known."""
        place = self.places.get(rank)
        return place.coords if place is not None else Coords()

    def groups(self, axis: str) -> list[tuple[int, ...]]:
        """Return the groups of ranks along an axis of several, in rising order; [] when there is no such axis."""
        known = self.history.groups.get(axis)
        if known is None:
            groups = {place.groups.get(axis, ()) for place in self.places.values()}
            known = self.history.groups[axis] = sorted({tuple(sorted(ranks)) for ranks in groups if len(ranks) > 1})
        return list(known)

    def where(self, **columns: str) -> pa.Table:
        """Return rows whose columns have these values: `where(phase="comm", port="out[0]")`."""
        import pyarrow as pa
        import pyarrow.compute as pc

        key = tuple(sorted(columns.items()))
        table = self.asked.get(key)
        if table is None:
            mask = reduce(pc.and_, (pc.equal(self.table[name], pa.scalar(value)) for name, value in key))
            table = self.asked[key] = self.table.filter(mask)
        return table

    def readings(self, table: pa.Table) -> Iterator[tuple[int, Reading]]:
        """Yield (rank, reading) of a few rows, for rules that are given all columns."""
        from hypocenter.record.schema import READINGS, readings_from

        yield from zip(table["rank"].to_pylist(), readings_from(table.select(READINGS.names)), strict=True)
