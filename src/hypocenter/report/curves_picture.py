"""Two charts, one above the other: a quantity of both, and its difference within the noise floor. Stands alone as SVG.

A sheet holds several such pairs: loss, grad norm, learning rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from xml.sax.saxutils import escape

from hypocenter.compare.curves.comparison import CurveComparison
from hypocenter.report import wording

WIDTH, HEIGHT = 600, 356  # pixels
PHONE = 362  # of a screen of 390, without the margins of a page
_LEFT, _RIGHT, _TOP = 80, 10, 40
_LETTER, _LINE = 6.3, 16  # of the title: the width of a character, and the height of a line
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
svg.curves.phone { display: none; width: 100%; max-width: 480px; height: auto; }
@media screen and (max-width: 600px) { svg.curves.phone { display: block; } svg.curves.broad { display: none; } }
""".strip()


def document(found: CurveComparison) -> str:
    """Draw the chart as an SVG file."""
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{_drawn(found, "loss", style=f"<style>{STYLE}</style>")}\n'


def sheet(charts: Sequence[tuple[str, CurveComparison]]) -> str:
    """Draw several charts as one SVG file, one below the other.

    Args:
        charts: names of quantities, and a comparison whose track holds each.
    """
    heights = [HEIGHT + _LINE * (len(_heading(found, WIDTH)) - 1) for _, found in charts]
    below = [sum(heights[:at]) for at in range(len(heights))]
    body = "".join(_drawn(found, name, y=y) for (name, found), y in zip(charts, below, strict=True))
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<svg class="curves" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {sum(heights)}" width="{WIDTH}" '
        f'height="{sum(heights)}"><style>{STYLE}</style>{body}</svg>\n'
    )


def inline(found: CurveComparison, *, name: str = "loss", is_titled: bool = True) -> str:
    """Draw the chart twice for an HTML page, whose screen shows the one that fits. The page has to bring STYLE.

    Args:
        name: of the quantity that `found.track` holds.
        is_titled: whether the sentence stands above it, because it stands nowhere else.
    """
    widths = {"broad": WIDTH, "phone": PHONE}
    return "".join(_drawn(found, name, width, kind=kind, is_titled=is_titled) for kind, width in widths.items())


def _drawn(
    found: CurveComparison, name: str, width: int = WIDTH, *, kind: str = "", style: str = "", y: int = 0,
    is_titled: bool = True,
) -> str:  # fmt: skip
    title = escape(wording.clean(found.sentence, 300))
    heading = _heading(found, width) if is_titled else []
    below = _LINE * (len(heading) - 1)
    height = HEIGHT + below + (2 * _LINE if width < WIDTH else 0)  # a legend of up to three lines
    at = f' y="{y}"' if y else ""
    told = "".join(f'<text x="{_LEFT}" y="{18 + _LINE * i}">{escape(line)}</text>' for i, line in enumerate(heading))
    return (
        f'<svg class="{f"curves {kind}".strip()}" xmlns="http://www.w3.org/2000/svg"{at} '
        f'viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">{style}<title>{title}</title>'
        f'<rect class="bg" width="{width}" height="{height}"/>{told}'
        f'<g transform="translate(0 {below})">{"".join(_parts(found, name, width))}</g></svg>'
    )


def _heading(found: CurveComparison, width: int) -> list[str]:
    return wrap(wording.clean(found.sentence, 300), int((width - _LEFT) / _LETTER)) or [""]


@dataclass(frozen=True, slots=True)
class _Across:
    """The horizontal places of steps in a chart."""

    steps: Sequence[int]
    right: int  # of the last step

    def x(self, step: int) -> float:
        wide = max(self.steps[-1] - self.steps[0], 1)
        return round(_LEFT + (self.right - _LEFT) * (step - self.steps[0]) / wide, 1)


def _parts(found: CurveComparison, name: str, width: int) -> Iterator[str]:
    track = found.track
    if not track.steps:
        yield f'<text class="mute" x="{_LEFT}" y="{_TOP + 20}">nothing to draw</text>'
        return
    across = _Across(track.steps, width - _RIGHT)
    top, below = _TOP, _TOP + _UPPER + _GAP
    upper = _span([*track.baseline, *track.candidate])
    yield from _frame(top, _UPPER, upper, escape(name), across.right)
    yield f'<path class="base" d="{_path(across, track.baseline, upper, top, _UPPER)}"/>'
    yield f'<path class="cand" d="{_path(across, track.candidate, upper, top, _UPPER)}"/>'
    floor = [value or 0.0 for value in track.floor]
    shown = [min(f, 3 * _largest(track.difference) + 1e-12) for f in floor]  # a huge floor must not flatten the line
    lower = _span([*track.difference, *shown, *(-f for f in shown)])
    if not _largest(track.difference):
        yield from _no_difference(below)
    else:
        yield from _frame(below, _LOWER, lower, "difference", across.right)
    yield f'<path class="band" d="{_band(across, shown, lower, below)}"/>'
    zero = _y(0.0, lower, below, _LOWER)
    yield f'<line class="grid" x1="{_LEFT}" x2="{across.right}" y1="{zero}" y2="{zero}"/>'
    yield f'<path class="cand" d="{_path(across, track.difference, lower, below, _LOWER)}"/>'
    yield from _marks(found, across, below)
    foot = below + _LOWER + 16
    yield f'<text class="mute" x="{_LEFT}" y="{foot}">step {track.steps[0]:,}</text>'
    yield f'<text class="mute end" x="{across.right}" y="{foot}">step {track.steps[-1]:,}</text>'
    yield from _legend(found, foot + 22, width)


def _legend(found: CurveComparison, y: int, width: int) -> Iterator[str]:
    """Yield a sample of each line, and the name of the file that it is of."""
    mine, other = (_named(role, name) for role, name in zip(("baseline", "candidate"), _sources(found), strict=True))
    x = _LEFT
    for kind, words in (("base", mine), ("cand", other), ("band", "noise stays within")):
        wide = 46 + round(6.6 * len(words))
        x, y = (_LEFT, y + _LINE) if x > _LEFT and x + wide > width else (x, y)
        sample = f"M{x} {y - 9}h22v10h-22z" if kind == "band" else f"M{x} {y - 4}h22"
        yield f'<path class="{kind}" d="{sample}"/><text class="mute" x="{x + 28}" y="{y}">{escape(words)}</text>'
        x += wide


def _no_difference(below: int) -> Iterator[str]:
    """Yield the frame of a difference that is 0 everywhere: one number says all."""
    y = below + _LOWER // 2 + 4
    yield f'<text class="mute end" x="{_LEFT - 6}" y="{y}">difference 0</text>'


def _sources(found: CurveComparison) -> tuple[str, str]:
    """Return the names of both files; when they are equal with as many folders as tell them apart."""
    mine, other = (Path(side.source).parts for side in (found.baseline, found.candidate))
    n = next((n for n in range(1, max(len(mine), len(other)) + 1) if mine[-n:] != other[-n:]), 1)
    return "/".join(mine[-n:]), "/".join(other[-n:])


def _named(role: str, source: str) -> str:
    name = wording.shortened(wording.clean(source), 34)
    return f"{role} {name}" if name else role


def _marks(found: CurveComparison, across: _Across, below: int) -> Iterator[str]:
    if found.departure is None:
        return
    x = across.x(min(max(found.departure.step, across.steps[0]), across.steps[-1]))
    yield f'<line class="mark" x1="{x}" x2="{x}" y1="{_TOP}" y2="{below + _LOWER}"/>'
    anchor = "end" if x > (_LEFT + across.right) / 2 else "start"
    yield f'<text class="bad" text-anchor="{anchor}" x="{x}" y="{_TOP - 4}">step {found.departure.step:,}</text>'


def _frame(top: int, height: int, span: tuple[float, float], name: str, right: int) -> Iterator[str]:
    middle, half = top + height // 2, sum(span) / 2
    half = half if abs(half) > 1e-9 * (span[1] - span[0]) else 0.0
    for value, y in ((span[1], top), (half, middle), (span[0], top + height)):
        yield f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y}" y2="{y}"/>'
        yield f'<text class="mute end" x="{_LEFT - 6}" y="{y + 4}">{value:.3g}</text>'
    yield f'<text class="mid" x="14" y="{middle}" transform="rotate(-90 14 {middle})">{name}</text>'


def _largest(values: Sequence[float | None]) -> float:
    return max((abs(v) for v in values if v is not None and math.isfinite(v)), default=0.0)


def _span(values: Sequence[float | None]) -> tuple[float, float]:
    finite = [v for v in values if v is not None and math.isfinite(v)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _y(value: float, span: tuple[float, float], top: int, height: int) -> float:
    return round(top + height * (span[1] - value) / (span[1] - span[0]), 1)


def _path(across: _Across, values: Sequence[float | None], span: tuple[float, float], top: int, height: int) -> str:
    pen, out = "M", list[str]()
    for step, value in zip(across.steps, values, strict=True):
        if value is None or not math.isfinite(value):
            pen = "M"
            continue
        out.append(f"{pen}{across.x(step)} {_y(value, span, top, height)}")
        pen = "L"
    return "".join(out)


def _band(across: _Across, floor: Sequence[float], span: tuple[float, float], top: int) -> str:
    over = [f"{across.x(s)} {_y(f, span, top, _LOWER)}" for s, f in zip(across.steps, floor, strict=True)]
    under = [f"{across.x(s)} {_y(-f, span, top, _LOWER)}" for s, f in zip(across.steps, floor, strict=True)]
    return "M" + "L".join([*over, *reversed(under)]) + "Z"
