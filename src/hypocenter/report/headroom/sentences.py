"""The sentences of an answer: one for the run, one per phase, one for the window of loss scales."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from hypocenter.formats import Format
from hypocenter.report import wording
from hypocenter.report.headroom.answer import LOST, Answer, Line, PhaseTotal, name_of
from hypocenter.summary.casting import floor_log2
from hypocenter.summary.scale_window import ScaleWindow

Zone = Literal["zero", "subnormal", "normal", "overflow"]
MARGIN_OCTAVES = 3  # shown beyond either end of the format; what lies further out is put into the last cell


def headline(answer: Answer) -> str:
    """Say `in float16 at scale 65,536: 2 of 118 sites would overflow, first …; 0.4 % … would become zero`."""
    head = f"in {answer.format.name}{_at_scale(answer)}: "
    if not answer.lines:
        return f"{head}cannot tell, no floating-point values were recorded here"
    n, n_sites = sum(x.overflows is True for x in answer.lines), len(answer.lines)
    n_unknown = sum(x.overflows is None for x in answer.lines)
    if n and answer.first is not None:
        said = f"{n:,} of {wording.count(n_sites, 'site')} would overflow, first {place(answer.first)}"
        said += f" (largest at step {answer.first.step})"
    elif n_unknown == n_sites:
        said = f"cannot tell whether any of {wording.count(n_sites, 'site')} would overflow"
    else:
        said = f"none of {wording.count(n_sites - n_unknown, 'site')} would overflow"
    n_bad = sum(x.n_still_bad > 0 for x in answer.lines)
    if n_bad:
        said += f", {n_bad:,} {'was' if n_bad == 1 else 'were'} NaN or infinite as recorded"
    if n_unknown and n_unknown < n_sites:
        said += f", of {n_unknown:,} it cannot be told"
    return "; ".join([head + said, *_lost(answer)])


def _at_scale(answer: Answer) -> str:
    if answer.scale is not None:
        return f" at scale {number(answer.scale)}"
    if not answer.recorded:
        return ""
    low, high = answer.recorded[0], answer.recorded[-1]
    return f" at the recorded scale ({number(low)}{f' to {number(high)}' if high > low else ''})"


def _lost(answer: Answer) -> Iterator[str]:
    for phases, what in (
        (("backward", "grad"), "gradients"),
        (("forward",), "activations"),
        (("param",), "parameters"),
    ):
        lines = [x for x in answer.lines if x.phase in phases and (what != "gradients" or x.is_scaled)]
        vague = {x.phase for x in lines if x.flushed is None}  # phases of which not every place tells
        told = [(x.flushed, x.n) for x in lines if x.flushed is not None and x.phase not in vague]
        if told and (what == "gradients" or sum(share * n for share, n in told) >= 0.001 * sum(n for _, n in told)):
            share = sum(share * n for share, n in told) / max(1, sum(n for _, n in told))
            yield f"{percent(share)} of {what} would become zero"


def phase_line(total: PhaseTotal) -> str:
    """Say `forward: 41 sites, none overflows, least headroom 3.2 bits (head out[0], step 12)`."""
    n = (
        f"{total.n_overflowing:,} overflow{'s' if total.n_overflowing == 1 else ''}"
        if total.n_overflowing
        else "none overflows"
    )
    if total.n_unknown:
        n += f", of {total.n_unknown:,} it cannot be told" if total.n_unknown < total.n_sites else ""
    parts = [f"{total.phase}: {wording.count(total.n_sites, 'site')}"]
    parts += [] if total.n_unknown == total.n_sites else [n]
    if total.worst is not None:
        parts.append(f"least headroom {bits(total.worst)} ({place(total.worst)}, step {total.worst.step})")
    if total.flushed is not None and total.subnormal is not None:
        parts.append(f"{percent(total.flushed)} would become zero, {percent(total.subnormal)} subnormal")
    return ", ".join(parts)


def window_lines(answer: Answer) -> Iterator[str]:
    """Say which loss scales lose nothing, and which lose little."""
    if answer.window is None:
        return
    strict, form = answer.window, answer.format.name
    if not any(x.known == "values" and x.is_scaled for x in answer.lines):
        yield f"loss scales at which no recorded gradient overflows in {form}: {_range(strict)}; {_high_side(strict)}"
        return
    if strict.is_empty:
        yield (f"no loss scale keeps every recorded gradient in {form}: {_low_side(strict)}, {_high_side(strict)}")
    else:
        sides = f"{_low_side(strict)}, {_high_side(strict)}"
        yield f"loss scales that lose no recorded gradient in {form}: {_range(strict)}; {sides}"
    if answer.largest_power is not None and answer.lost_there is not None:
        there = f"{percent(answer.lost_there)} of all gradients would become zero there"
        yield f"the largest power of two at which none overflows is {power(answer.largest_power)}; {there}"
    lost = answer.window_lost
    if lost is not None and lost.above < strict.above:
        share = f"at most {percent(LOST)} of the nonzero elements of each site"
        yield f"scales that lose {share}: {'none' if lost.is_empty else _range(lost)}"


def _range(window: ScaleWindow) -> str:
    low, high = window.smallest_power, window.largest_power
    if window.above and window.below is not None:
        if low is None or high is None:
            return f"between {number(window.above)} and {number(window.below)}, no power of two"
        return f"{power(low)}" if low == high else f"{power(low)} to {power(high)}"
    if window.below is not None and high is not None:
        return f"up to {power(high)}"
    return f"from {power(low)} on" if low is not None else "any"


def _low_side(window: ScaleWindow) -> str:
    if not window.lowest_site:
        return "nothing vanishes"
    return f"{wording.clean(window.lowest_site)} needs more than {number(window.above)}"


def _high_side(window: ScaleWindow) -> str:
    if window.below is None:
        return "nothing overflows"
    return f"{wording.clean(window.highest_site)} less than {number(window.below)}"


def place(line: Line) -> str:
    """Return the site as people read it."""
    return wording.clean(name_of(line))


def bits(line: Line) -> str:
    """Return headroom as text: `3.2 bits`, `-1.0 bits`, `3.2 to 9.1 bits` from a norm, `-` when all is zero."""
    if line.bits is None:
        return "-"
    if line.bits_at_most is not None and line.bits_at_most - line.bits >= 0.1:
        return f"{line.bits:.1f} to {line.bits_at_most:.1f} bits"
    return f"{line.bits:.1f} bits"


def percent(share: float | None) -> str:
    """Return a share as text: `0.4 %`, `<0.01 %`, `0 %`; `?` where it is not known."""
    if share is None:
        return "?"
    hundredfold = 100.0 * share
    if 0.0 < hundredfold < 0.01:
        return "<0.01 %"
    if hundredfold < 10.0 and hundredfold:
        return f"{hundredfold:.2g} %"
    return (
        f"{hundredfold:.0f} %" if hundredfold < 99.5 or share == 1.0 else f"{math.floor(hundredfold * 10) / 10:.1f} %"
    )


def number(value: float | Fraction) -> str:
    """Return a number as text: `65,536`, `0.5`, `1.2e-05`, `2^40`."""
    size = float(value)
    exponent = math.frexp(size)[1] - 1 if size else 0
    if size == 2.0**exponent and not -4 <= exponent <= 24:
        return f"2^{exponent}"
    return f"{size:,.0f}" if 100 <= size < 1e9 else f"{size:.3g}"


def power(exponent: int) -> str:
    """Return a power of two as text: `2^16 (65,536)`."""
    return f"2^{exponent} ({2**exponent:,})" if 3 < exponent <= 30 else f"2^{exponent}"


def worst_first(lines: Sequence[Line]) -> list[Line]:
    """Sort lines: those that overflow, then those that lose a thousandth or more to zero, then by headroom."""
    return sorted(
        lines,
        key=lambda x: (
            x.overflows is not True,
            -x.flushed if x.flushed is not None and x.flushed >= 0.001 else 0.0,
            x.bits if x.bits is not None else math.inf,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Cells of equal width in octaves: cell i covers the exponents from `first + i * octaves` on."""

    first: int
    octaves: int
    zones: tuple[Zone, ...]

    @property
    def n_cells(self) -> int:
        """The number of cells."""
        return len(self.zones)


def axis_of(form: Format, most_cells: int) -> Axis:
    """Return the axis of a format in at most so many cells."""
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
    """Return the share of the nonzero elements in each cell."""
    found = [0.0] * axis.n_cells
    for exponent, count in enumerate(line.hist, line.hist_first):
        cell = min(max((exponent - axis.first) // axis.octaves, 0), axis.n_cells - 1)
        found[cell] += count
    total = sum(found)
    return [count / total for count in found] if total else found


def level(share: float, n_levels: int) -> int:
    """Return 0 for nothing, else a level by powers of ten: of five levels 1 is below 0.1 %, 4 is 10 % and above."""
    if share <= 0.0:
        return 0
    return min(n_levels - 1, max(1, n_levels + math.floor(math.log10(share))))
