"""One (step, rank, micro-batch) whose module frames are worth showing: the first that failed, else the last."""

from __future__ import annotations

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions when it is imported)
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from hypocenter.nouns import Reading
from hypocenter.record.schema import READINGS, readings_from


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """The readings of one micro-batch on one rank."""

    step: int
    microbatch: int
    rank: int
    is_replay: bool
    readings: tuple[Reading, ...]
    weights: tuple[Reading, ...] = ()  # parameters at this step, when they were read

    def in_words(self) -> str:
        """`step 12, micro-batch 0, rank 3 (executed again after it failed)`."""
        replayed = " (executed again after it failed)" if self.is_replay else ""
        return f"step {self.step}, micro-batch {self.microbatch}, rank {self.rank}{replayed}"

    def named(self) -> dict[str, int | bool]:
        """The place, for JSON."""
        return {"step": self.step, "microbatch": self.microbatch, "rank": self.rank, "replay": self.is_replay}


def spot_of(table: pa.Table) -> Spot | None:
    """Choose among the forward module readings of `table`; None when it has none."""
    modules = table.filter(pc.and_(pc.equal(table["phase"], "forward"), pc.equal(table["op"], "")))
    if modules.num_rows == 0:
        return None
    counts = pc.add(pc.add(modules["n_nan"], modules["n_posinf"]), modules["n_neginf"])
    planned = pc.and_(modules["literal_inf"], pc.equal(modules["n_nan"], 0))
    bad = modules.filter(pc.and_(pc.greater(counts, 0), pc.invert(planned)))
    keys = [("step", "ascending"), ("microbatch", "ascending"), ("order", "ascending")]
    row = bad.sort_by(keys).slice(0, 1) if bad.num_rows else modules.sort_by(keys).slice(modules.num_rows - 1, 1)
    place = {name: row[name][0].as_py() for name in ("step", "microbatch", "rank", "replay")}
    parameters = table.filter(pc.and_(pc.equal(table["phase"], "param"), pc.equal(table["port"], "value")))
    return Spot(
        step=place["step"], microbatch=place["microbatch"], rank=place["rank"], is_replay=place["replay"],
        readings=_at(modules, place), weights=_at(parameters, {**place, "microbatch": None}),
    )  # fmt: skip


def _at(table: pa.Table, place: dict[str, int | bool | None]) -> tuple[Reading, ...]:
    for name, value in place.items():
        if value is not None:
            table = table.filter(pc.equal(table[name], value))
    return tuple(readings_from(table.select(READINGS.names)))
