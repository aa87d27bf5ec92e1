"""A histogram of exponents as a row of cells between what a format flushes to zero and what it cannot hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hypocenter.formats import Format
from hypocenter.report.headroom.answer import Line
from hypocenter.summary.casting import floor_log2

Zone = Literal["zero", "subnormal", "normal", "overflow"]
MARGIN_OCTAVES = 3  # shown beyond either end of the format; what lies further out is put into the last cell


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Cells of equal width in octaves: cell i covers the exponents from `first + i * octaves` on."""

    first: int
    octaves: int
    zones: tuple[Zone, ...]

    @property
    def n_cells(self) -> int:
        """How many cells there are."""
        return len(self.zones)


def axis_of(form: Format, most_cells: int) -> Axis:
    """The axis of a format in at most so many cells."""
    zero, top = floor_log2(form.flushes_to), form.largest_exponent
    first, last = zero - MARGIN_OCTAVES, top + MARGIN_OCTAVES
    octaves = max(1, math.ceil((last - first + 1) / max(1, most_cells)))
    n = math.ceil((last - first + 1) / octaves)
    return Axis(
        first=first, octaves=octaves, zones=tuple(_zone(form, zero, first + i * octaves, octaves) for i in range(n))
    )


def _zone(form: Format, zero: int, exponent: int, octaves: int) -> Zone:
    middle = exponent + (octaves - 1) / 2
    if middle < zero:
        return "zero"
    if middle < form.smallest_exponent:
        return "subnormal"
    return "normal" if middle <= form.largest_exponent else "overflow"


def shares(line: Line, axis: Axis) -> Sequence[float]:
    """The share of the nonzero elements in each cell."""
    found = [0.0] * axis.n_cells
    for exponent, count in enumerate(line.hist, line.hist_first):
        cell = min(max((exponent - axis.first) // axis.octaves, 0), axis.n_cells - 1)
        found[cell] += count
    total = sum(found)
    return [count / total for count in found] if total else found


def level(share: float, n_levels: int) -> int:
    """0 for nothing, then by powers of ten: of five levels 1 is below 0.1 %, 4 is 10 % and above."""
    if share <= 0.0:
        return 0
    return min(n_levels - 1, max(1, n_levels + math.floor(math.log10(share))))
