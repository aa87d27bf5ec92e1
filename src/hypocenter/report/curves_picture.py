"""Two charts, one above the other: a quantity of both, and its difference within the noise floor. Stands alone as SVG.

A sheet holds several such pairs: loss, grad norm, learning rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import wrap
from xml.sax.saxutils import escape

from hypocenter.compare.curves.comparison import CurveComparison
from hypocenter.report import wording

WIDTH, HEIGHT = 600, 356  # pixels
_LEFT, _RIGHT, _TOP = 80, 10, 40
_TITLE_ROOM, _LINE = 82, 16  # characters of a line of the title, and its height
_UPPER, _LOWER, _GAP = 130, 100, 24  # heights of the two charts and what is between

STYLE = """
svg.curves { --bg: #ffffff; --fg: #1b1f24; --mute: #57606a; --line: #d8dee4; --base: #57606a; --cand: #1f6f8b;
  --bad: #c42b24; --band: #1f6f8b22; font: 12px system-ui, "DejaVu Sans", sans-serif; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { svg.curves { --bg: #0f1216; --fg: #e6e8eb; --mute: #9aa4af; --line: #2b3138;
  --base: #9aa4af; --cand: #7cc0ea; --bad: #ff6b63; --band: #7cc0ea22; } }
.curves .bg { fill: var(--bg); } .curves text { fill: var(--fg); } .curves .mute { fill: var(--mute); }
.curves .end { text-anchor: end; } .curves .mid { text-anchor: middle; }
.curves .grid { stroke: var(--line); } .curves path { fill: none; }
.curves .base { stroke: var(--base); stroke-dasharray: 5 3; } .curves .cand { stroke: var(--cand); }
.curves path.band { fill: var(--band); }
.curves .mark { stroke: var(--bad); stroke-dasharray: 3 3; } .curves text.bad { fill: var(--bad); }
""".strip()


def document(found: CurveComparison) -> str:
    """The chart as an SVG file."""
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + inline(found, with_style=True) + "\n"


def sheet(charts: Sequence[tuple[str, CurveComparison]]) -> str:
    """Several charts as one SVG file, one below the other.

    Args:
        charts: names of quantities, and a comparison whose track holds each.
    """
    heights = [HEIGHT + _LINE * (len(_heading(found)) - 1) for _, found in charts]
    below = [sum(heights[:at]) for at in range(len(heights))]
    body = "".join(inline(found, name=name, y=y) for (name, found), y in zip(charts, below, strict=True))
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<svg class="curves" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {sum(heights)}" width="{WIDTH}" '
        f'height="{sum(heights)}"><style>{STYLE}</style>{body}</svg>\n'
    )


def inline(
    found: CurveComparison, *, with_style: bool = False, name: str = "loss", y: int = 0, is_titled: bool = True
) -> str:
    """The chart as an element for an HTML page, which has to bring STYLE itself unless `with_style`.

    Args:
        name: of the quantity that `found.track` holds.
        is_titled: whether the sentence stands above it, because it stands nowhere else.
        y: pixels from the top of the drawing around it.
    """
    style = f"<style>{STYLE}</style>" if with_style else ""
    title = escape(wording.clean(found.sentence, 300))
    heading = _heading(found) if is_titled else []
    below = _LINE * (len(heading) - 1)
    height = HEIGHT + below
    at = f' y="{y}"' if y else ""
    told = "".join(f'<text x="{_LEFT}" y="{18 + _LINE * i}">{escape(line)}</text>' for i, line in enumerate(heading))
    return (
        f'<svg class="curves" xmlns="http://www.w3.org/2000/svg"{at} viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" role="img">{style}<title>{title}</title>'
        f'<rect class="bg" width="{WIDTH}" height="{height}"/>{told}'
        f'<g transform="translate(0 {below})">{"".join(_parts(found, name))}</g></svg>'
    )


def _heading(found: CurveComparison) -> list[str]:
    return wrap(wording.clean(found.sentence, 300), _TITLE_ROOM) or [""]


def _parts(found: CurveComparison, name: str) -> Iterator[str]:
    track = found.track
    if not track.steps:
        yield f'<text class="mute" x="{_LEFT}" y="{_TOP + 20}">nothing to draw</text>'
        return
    top, below = _TOP, _TOP + _UPPER + _GAP
    upper = _span([*track.baseline, *track.candidate])
    yield from _frame(top, _UPPER, upper, escape(name))
    yield f'<path class="base" d="{_path(track.steps, track.baseline, upper, top, _UPPER)}"/>'
    yield f'<path class="cand" d="{_path(track.steps, track.candidate, upper, top, _UPPER)}"/>'
    floor = [value or 0.0 for value in track.floor]
    shown = [min(f, 3 * _largest(track.difference) + 1e-12) for f in floor]  # a huge floor must not flatten the line
    lower = _span([*track.difference, *shown, *(-f for f in shown)])
    if not _largest(track.difference):
        yield from _no_difference(below)
    else:
        yield from _frame(below, _LOWER, lower, "difference")
    yield f'<path class="band" d="{_band(track.steps, shown, lower, below)}"/>'
    zero = _y(0.0, lower, below, _LOWER)
    yield f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{zero}" y2="{zero}"/>'
    yield f'<path class="cand" d="{_path(track.steps, track.difference, lower, below, _LOWER)}"/>'
    yield from _marks(found, below)
    foot = below + _LOWER + 16
    yield f'<text class="mute" x="{_LEFT}" y="{foot}">step {track.steps[0]:,}</text>'
    yield f'<text class="mute end" x="{WIDTH - _RIGHT}" y="{foot}">step {track.steps[-1]:,}</text>'
    yield from _legend(found, foot + 22)


def _legend(found: CurveComparison, y: int) -> Iterator[str]:
    """A sample of each line, and the file that it is of."""
    mine, other = (_named(role, name) for role, name in zip(("baseline", "candidate"), _sources(found), strict=True))
    x = _LEFT
    for kind, words in (("base", mine), ("cand", other), ("band", "noise stays within")):
        wide = 46 + round(6.6 * len(words))
        x, y = (_LEFT, y + _LINE) if x > _LEFT and x + wide > WIDTH else (x, y)
        sample = f"M{x} {y - 9}h22v10h-22z" if kind == "band" else f"M{x} {y - 4}h22"
        yield f'<path class="{kind}" d="{sample}"/><text class="mute" x="{x + 28}" y="{y}">{escape(words)}</text>'
        x += wide


def _no_difference(below: int) -> Iterator[str]:
    """The frame of a difference that is 0 everywhere: one number says all."""
    y = below + _LOWER // 2 + 4
    yield f'<text class="mute end" x="{_LEFT - 6}" y="{y}">difference 0</text>'


def _sources(found: CurveComparison) -> tuple[str, str]:
    """The names of both files; of two that are called alike as many folders more as tell them apart."""
    mine, other = (Path(side.source).parts for side in (found.baseline, found.candidate))
    n = next((n for n in range(1, max(len(mine), len(other)) + 1) if mine[-n:] != other[-n:]), 1)
    return "/".join(mine[-n:]), "/".join(other[-n:])


def _named(role: str, source: str) -> str:
    name = wording.shortened(wording.clean(source), 34)
    return f"{role} {name}" if name else role


def _marks(found: CurveComparison, below: int) -> Iterator[str]:
    if found.departure is None:
        return
    steps = found.track.steps
    x = _x(min(max(found.departure.step, steps[0]), steps[-1]), steps)
    yield f'<line class="mark" x1="{x}" x2="{x}" y1="{_TOP}" y2="{below + _LOWER}"/>'
    anchor = "end" if x > WIDTH / 2 else "start"
    yield f'<text class="bad" text-anchor="{anchor}" x="{x}" y="{_TOP - 4}">step {found.departure.step:,}</text>'


def _frame(top: int, height: int, span: tuple[float, float], name: str) -> Iterator[str]:
    middle, half = top + height // 2, sum(span) / 2
    half = half if abs(half) > 1e-9 * (span[1] - span[0]) else 0.0
    for value, y in ((span[1], top), (half, middle), (span[0], top + height)):
        yield f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>'
        yield f'<text class="mute end" x="{_LEFT - 6}" y="{y + 4}">{value:.3g}</text>'
    yield f'<text class="mid" x="14" y="{middle}" transform="rotate(-90 14 {middle})">{name}</text>'


def _largest(values: Sequence[float | None]) -> float:
    return max((abs(v) for v in values if v is not None and math.isfinite(v)), default=0.0)


def _span(values: Sequence[float | None]) -> tuple[float, float]:
    finite = [v for v in values if v is not None and math.isfinite(v)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _x(step: int, steps: Sequence[int]) -> float:
    wide = max(steps[-1] - steps[0], 1)
    return round(_LEFT + (WIDTH - _LEFT - _RIGHT) * (step - steps[0]) / wide, 1)


def _y(value: float, span: tuple[float, float], top: int, height: int) -> float:
    return round(top + height * (span[1] - value) / (span[1] - span[0]), 1)


def _path(
    steps: Sequence[int], values: Sequence[float | None], span: tuple[float, float], top: int, height: int
) -> str:
    pen, out = "M", list[str]()
    for step, value in zip(steps, values, strict=True):
        if value is None or not math.isfinite(value):
            pen = "M"
            continue
        out.append(f"{pen}{_x(step, steps)} {_y(value, span, top, height)}")
        pen = "L"
    return "".join(out)


def _band(steps: Sequence[int], floor: Sequence[float], span: tuple[float, float], top: int) -> str:
    over = [f"{_x(s, steps)} {_y(f, span, top, _LOWER)}" for s, f in zip(steps, floor, strict=True)]
    under = [f"{_x(s, steps)} {_y(-f, span, top, _LOWER)}" for s, f in zip(steps, floor, strict=True)]
    return "M" + "L".join([*over, *reversed(under)]) + "Z"
