"""An error against its noise floor, drawn on an axis of powers of two: SVG that needs no script."""

from __future__ import annotations

import math
from collections.abc import Iterator

from hypocenter.compare.comparison import Distance, Divergence
from hypocenter.compare.verdict import source_of_floor
from hypocenter.compare.words import power

WIDTH, HEIGHT = 560, 64  # pixels
_LEFT, _RIGHT, _LINE = 12, 12, 30
_LEAST = -52  # exponent: below it a relative error is rounding of float64
_TICKS = 8
_APART = 74  # pixels between the words of two marks, else they would overlap

STYLE = """
svg.ruler { display: block; max-width: 100%; height: auto; font: 11px system-ui, "DejaVu Sans", sans-serif; }
.ruler text { fill: var(--fg); } .ruler .mute { fill: var(--mute); } .ruler .axis, .ruler .tick { stroke: var(--line); }
.ruler .noise { fill: var(--mute); opacity: .22; } .ruler .budget { fill: var(--mute); opacity: .12; }
.ruler .floor { stroke: var(--mute); stroke-width: 2; } .ruler .error { stroke: var(--error); stroke-width: 3; }
.ruler .span { stroke: var(--error); stroke-width: 6; opacity: .3; }
.ruler text.bad { fill: var(--error); font-weight: 600; }
.ruler .mid { text-anchor: middle; } .ruler .end { text-anchor: end; }
""".strip()


def ruler(first: Divergence, least: float) -> str:
    """The drawing; empty when there is no noise, or a number of it is zero or not finite.

    Args:
        first: the place.
        least: times the floor from which an error counts.
    """
    error, floor, source = first.error, first.floor, source_of_floor(first)
    if source == "none" or not all(0.0 < value < math.inf for value in (error, floor)):
        return ""
    distance = first.row.distance if first.row is not None else None
    high = max(1.0, error * 2, distance.high if distance is not None and math.isfinite(distance.high) else 0.0)
    low, top = math.floor(max(_LEAST, math.log2(floor) - 4)), math.ceil(math.log2(high))
    return "".join(_parts(error, floor, least, distance, (low, max(top, low + 1))))


def _parts(error: float, floor: float, least: float, distance: Distance | None, span: tuple[int, int]) -> Iterator[str]:
    def at(value: float) -> float:
        share = (math.log2(value) - span[0]) / (span[1] - span[0])
        return round(_LEFT + (WIDTH - _LEFT - _RIGHT) * min(max(share, 0.0), 1.0), 1)

    label = f"relative error {power(error)}, noise floor {power(floor)}, an error counts from {least:.3g} times it on"
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    yield f'<svg class="ruler" {size} role="img" aria-label="{label}">'
    yield f'<rect class="noise" x="{_LEFT}" y="{_LINE - 8}" width="{at(floor) - _LEFT}" height="16"/>'
    if least > 1:
        wide = at(floor * least) - at(floor)
        yield f'<rect class="budget" x="{at(floor)}" y="{_LINE - 8}" width="{max(wide, 0):.1f}" height="16"/>'
    yield f'<line class="axis" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{_LINE}" y2="{_LINE}"/>'
    for exponent in range(span[0], span[1] + 1, max(1, math.ceil((span[1] - span[0]) / _TICKS))):
        x = at(2.0**exponent)
        yield f'<line class="tick" x1="{x}" x2="{x}" y1="{_LINE - 4}" y2="{_LINE + 12}"/>'
        anchor = "mid" if x > 2 * _LEFT else ""
        yield f'<text class="mute {anchor}" x="{x if anchor else 0}" y="{_LINE + 26}">2^{exponent}</text>'
    if distance is not None and 0.0 < distance.low <= distance.high < math.inf:
        yield f'<line class="span" x1="{at(distance.low)}" x2="{at(distance.high)}" y1="{_LINE}" y2="{_LINE}"/>'
    for value, name in ((floor, "floor"), (error, "error")):
        yield f'<line class="{name}" x1="{at(value)}" x2="{at(value)}" y1="{_LINE - 11}" y2="{_LINE + 11}"/>'
    yield from _words(at(error), at(floor))
    yield "</svg>"


def _words(error: float, floor: float) -> Iterator[str]:
    near, y = error - floor < _APART, _LINE - 16
    yield f'<text class="{"end" if near else "mid"}" x="{floor + (6 if near else 0)}" y="{y}">noise floor</text>'
    end = error > WIDTH - _APART / 2
    kind = "end" if end and not near else "" if near else "mid"
    x = min(error + (10 if near else 6 if end else 0), WIDTH)
    yield f'<text class="bad {kind}" x="{x}" y="{y}">error</text>'
