"""The answer as a picture: exponents of every site against what the format can hold. An SVG that stands alone."""

from __future__ import annotations

from collections.abc import Iterator
from xml.sax.saxutils import escape

from hypocenter.report import wording
from hypocenter.report.headroom import sentences
from hypocenter.report.headroom.answer import Answer, Line
from hypocenter.report.headroom.sentences import Axis, axis_of, level, shares

MOST_ROWS = 400  # sites of one picture; the rest is counted
MOST_CELLS = 64
WIDTH, NAME, CELLS, ROW, TOP = 1180, 420, 460, 15, 64  # pixels; of a row's height 15, of the heading 64
N_LEVELS = 6  # shades by powers of ten, from none to a tenth of the values and more
ZONES = {"zero": "becomes zero", "subnormal": "subnormal", "normal": "normal", "overflow": "overflows"}

STYLE = """
svg { --bg: #ffffff; --fg: #1b1f24; --mute: #57606a; --line: #d8dee4; --zero: #8a4bbd; --subnormal: #8a5c00;
  --normal: #1f6f8b; --overflow: #c42b24; font: 11px system-ui, "DejaVu Sans", sans-serif; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { svg { --bg: #0f1216; --fg: #e6e8eb; --mute: #9aa4af; --line: #2b3138;
  --zero: #c58af0; --subnormal: #e3b341; --normal: #7cc0ea; --overflow: #ff6b63; } }
.bg { fill: var(--bg); } text { fill: var(--fg); } .mute { fill: var(--mute); }
.head { font-weight: 600; font-size: 13px; }
.bad { fill: var(--overflow); font-weight: 600; } .end { text-anchor: end; } .middle { text-anchor: middle; }
.grid { stroke: var(--line); stroke-width: 1; } .limit { stroke: var(--mute); stroke-width: 1; stroke-dasharray: 3 3; }
.zero { fill: var(--zero); } .subnormal { fill: var(--subnormal); } .normal { fill: var(--normal); }
.overflow { fill: var(--overflow); } text.zero, text.subnormal, text.normal, text.overflow { font-size: 10px; }
""".strip()


def svg(answer: Answer, run: str) -> str:
    """Return the picture as an SVG document."""
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + _svg(answer, run, sentences.headline(answer))


def _drawn(answer: Answer) -> list[Line]:
    return [x for x in answer.lines if x.hist or x.bits is not None][:MOST_ROWS]


def _left_out(answer: Answer) -> str:
    n = len(answer.lines) - len(_drawn(answer))
    return f"{wording.count(n, 'site')} without values or beyond {MOST_ROWS} not drawn" if n else ""


def _opened(height: int, label: str, style: str = "") -> str:
    """Return the start of an SVG element with its background, and its style where no page around has that."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'role="img" aria-label="{_text(label)}">{style}<rect class="bg" width="{WIDTH}" height="{height}"/>'
    )


def _svg(answer: Answer, run: str, title: str) -> str:
    axis, drawn = axis_of(answer.format, MOST_CELLS), _drawn(answer)
    sections = [(t, [x for x in drawn if x.phase == t.phase]) for t in answer.phases]
    height = TOP + sum(34 + ROW * len(lines) for _, lines in sections) + 30
    parts = [
        _opened(height, sentences.headline(answer), f"<style>{STYLE}</style>"),
        f'<text class="head" x="10" y="20">{_text(wording.cut_middle(title, 170))}</text>',
        *_heading(axis),
    ]
    y = TOP
    for total, lines in sections:
        y += 24
        parts.append(f'<text class="head" x="10" y="{y}">{total.phase}</text>')
        y += 8
        parts += _limits(axis, y, ROW * len(lines))
        for line in lines:
            parts += _row(line, axis, y)
            y += ROW
        y += 2
    more = f"; {left_out}" if (left_out := _left_out(answer)) else ""
    about = f"run {run}: each row is a site, each cell {_octaves(axis)} of magnitude, darker for more values{more}"
    parts.append(f'<text class="mute" x="10" y="{height - 10}">{_text(about)}</text></svg>')
    return "\n".join(parts)


def _octaves(axis: Axis) -> str:
    return "one octave" if axis.octaves == 1 else f"{axis.octaves} octaves"


def _heading(axis: Axis) -> Iterator[str]:
    """Yield the names of the zones, exponents, and the headings of the columns to the right."""
    for zone, name in ZONES.items():
        cells = [i for i, z in enumerate(axis.zones) if z == zone]
        if cells:
            middle = (_x(axis, cells[0]) + _x(axis, cells[-1] + 1)) / 2
            yield f'<text class="{zone} middle" x="{middle:.1f}" y="44">{name}</text>'
    every = max(1, round(axis.n_cells / 8))
    for i in range(0, axis.n_cells, every):
        yield f'<text class="mute" x="{_x(axis, i):.1f}" y="58">2^{axis.first + i * axis.octaves}</text>'
    for x, name in ((955, "headroom"), (1020, "overflow"), (1090, "to zero"), (1165, "subnormal")):
        yield f'<text class="mute end" x="{x}" y="58">{name}</text>'


def _limits(axis: Axis, y: int, height: int) -> Iterator[str]:
    """Yield dashed lines where one zone ends and the next begins."""
    for i in range(1, axis.n_cells):
        if axis.zones[i] != axis.zones[i - 1]:
            x = _x(axis, i)
            yield f'<line class="limit" x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{y + height}"/>'


def _row(line: Line, axis: Axis, y: int) -> Iterator[str]:
    name = sentences.place(line)
    size = f"|max| {wording.number(line.absmax)} at step {line.step}"
    about = f"{name}, {line.dtype}, {size}, headroom {sentences.bits(line)}"
    yield f"<g><title>{_text(about)}</title>"
    shown = _text(wording.shortened(name, 66))
    yield f'<text class="{"bad" if line.overflows else ""}" x="10" y="{y + 11}">{shown}</text>'
    width = CELLS / axis.n_cells
    for i, share in enumerate(shares(line, axis)):
        if share:
            opacity = level(share, N_LEVELS) / (N_LEVELS - 1)
            yield (
                f'<rect class="{axis.zones[i]}" x="{_x(axis, i):.1f}" y="{y + 1}" width="{width - 0.6:.1f}" '
                f'height="{ROW - 2}" fill-opacity="{0.1 + 0.9 * opacity:.2f}"/>'
            )
    cells = (sentences.bits(line), *map(sentences.percent, (line.overflow, line.flushed, line.subnormal)))
    for x, cell in zip((955, 1020, 1090, 1165), cells, strict=True):
        yield f'<text class="end{" bad" if line.overflows else ""}" x="{x}" y="{y + 11}">{_text(cell)}</text>'
    yield f'<line class="grid" x1="10" x2="{WIDTH - 12}" y1="{y + ROW}" y2="{y + ROW}"/></g>'


def _x(axis: Axis, cell: int) -> float:
    return NAME + cell * CELLS / axis.n_cells


def _text(text: str) -> str:
    return escape(wording.clean(text, at_most=2000), {'"': "&quot;"})
