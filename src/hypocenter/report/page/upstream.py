"""The rows around the first bad value: what ran just before it and just after, in execution order."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from hypocenter.detect.bookkeeping import holds_values, is_bookkeeping
from hypocenter.nouns import Finding, Reading
from hypocenter.record.schema import READINGS, readings_from
from hypocenter.report import wording
from hypocenter.report.page.grid import UNINITIALISED

BEFORE, AFTER = 14, 4  # rows shown around the first bad one


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One row of the table, in words."""

    site: str  # as recorded, to find its row in the grid
    port: str
    shown: str  # what to print
    port_shown: str
    phase: str
    op: str
    dtype: str
    shape: str
    absmax: str
    chips: tuple[str, ...]
    headroom: str
    is_first_bad: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """The table, whether it comes from a replay of the step, and how many earlier rows it leaves out."""

    lines: tuple[Line, ...]
    is_replay: bool
    n_earlier: int


def upstream_of(finding: Finding, table: pa.Table) -> Upstream | None:
    """Return the rows around the finding, from the replay of its step when there is one; None when there are none."""
    near = table.filter(_same_micro_batch(finding, table))
    near = near.filter(pc.invert(pc.match_substring_regex(near["op"], UNINITIALISED)))
    near = near.filter(pc.and_not(holds_values(near), is_bookkeeping(near)))
    replayed = near.filter(near["replay"])
    is_replay = _index(finding, replayed) is not None
    chosen = replayed if is_replay else near.filter(pc.invert(near["replay"]))
    chosen = chosen.take(pc.sort_indices(chosen, sort_keys=[("order", "ascending")]))
    middle = _index(finding, chosen)
    if middle is None:
        return None
    first = max(0, middle - BEFORE)
    readings = list(readings_from(chosen.select(READINGS.names).slice(first, middle - first + AFTER + 1)))
    lines = tuple(_line(reading, is_first_bad=first + i == middle) for i, reading in enumerate(readings))
    return Upstream(lines=lines, is_replay=is_replay, n_earlier=first)


def _same_micro_batch(finding: Finding, table: pa.Table) -> pa.Array:
    same = pc.equal(table["step"], finding.step)
    same = pc.and_(same, pc.equal(table["microbatch"], finding.microbatch))
    return pc.and_(same, pc.equal(table["rank"], finding.rank)) if "rank" in table.column_names else same


def _index(finding: Finding, table: pa.Table) -> int | None:
    """Return the number of the finding's own row: same site, if possible same port and op and not finite; else None."""
    name = finding.site if finding.site is not None else finding.param
    if name is None or table.num_rows == 0:
        return None
    bad = pc.greater(pc.add(pc.add(table["n_nan"], table["n_posinf"]), table["n_neginf"]), 0)
    here = pc.equal(table["site"], name)
    same_port = pc.and_(here, pc.equal(table["port"], finding.port or ""))
    same_op = pc.and_(same_port, pc.equal(table["op"], finding.op or ""))
    for mask in (pc.and_(same_op, bad), pc.and_(same_port, bad), pc.and_(here, bad), same_op, same_port, here):
        index = pc.index(mask, True).as_py()
        if index >= 0:
            return int(index)
    return None


def _line(reading: Reading, *, is_first_bad: bool) -> Line:
    return Line(
        site=reading.site,
        port=reading.port,
        shown=wording.clean(reading.site) or "the model itself",
        port_shown=wording.clean(reading.port),
        phase=reading.phase,
        op=wording.clean(reading.op),
        dtype=wording.clean(reading.dtype),
        shape=wording.shape(reading.shape),
        absmax=wording.magnitude(reading.summary),
        chips=wording.chips(reading.summary),
        headroom=wording.headroom(reading.summary, reading.dtype),
        is_first_bad=is_first_bad,
    )
