"""The answer as a picture: exponents of every site against what the format can hold. SVG, or a page that holds it.

Both stand alone: nothing is loaded, and the page forbids the browser to.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from hypocenter._version import __version__
from hypocenter.report import wording
from hypocenter.report.headroom import sentences
from hypocenter.report.headroom.answer import Answer, Line
from hypocenter.report.headroom.sentences import Axis, axis_of, level, shares

MOST_ROWS = 400  # sites of one picture; the rest is counted
MOST_CELLS = 64
MODULE_PARTS = 2  # name parts of what folds together: layers.0
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
PAGE_STYLE = """
:root { color-scheme: light dark; --bg: #ffffff; --fg: #1b1f24; --mute: #57606a; }
@media (prefers-color-scheme: dark) { :root { --bg: #0f1216; --fg: #e6e8eb; --mute: #9aa4af; } }
body { margin: 0 auto; max-width: 1220px; padding: 20px; background: var(--bg); color: var(--fg);
  font: 14px/1.5 system-ui, "DejaVu Sans", sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 17px; margin: 0 0 8px; } h2 { font-size: 15px; margin: 22px 0 6px; }
p, li { margin: 4px 0; } .mute { color: var(--mute); }
.scroll { overflow-x: auto; } summary { cursor: pointer; padding: 2px 0; }
svg { display: block; margin: 6px 0 14px; }
@media print { .scroll { overflow: visible; } }
""".strip()


def svg(answer: Answer, run: str) -> str:
    """The picture as an SVG document."""
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + _svg(answer, run, sentences.headline(answer))


def html(answer: Answer, run: str) -> str:
    """The picture and the sentences around it as one offline page."""
    policy = f"default-src 'none'; style-src {_hash(STYLE)} {_hash(PAGE_STYLE)}; base-uri 'none'; form-action 'none'"
    said = [*map(sentences.phase_line, answer.phases), *sentences.window_lines(answer)]
    limits = [f"{r.site or '(model)'} {r.op}: {r.sentence(answer.format)}" for r in answer.reductions]
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width"><title>headroom of {_text(run)} in {answer.format.name}</title>
<style>{STYLE}</style><style>{PAGE_STYLE}</style></head><body><main>
<h1>{_text(sentences.headline(answer))}</h1>
{_list(said)}
{"".join(_folds(answer))}
<p class="mute">{_text(_legend(answer))}</p>
{"<p>Reductions near their limit:</p>" if limits else ""}{_list(limits)}
{_list([f"note: {note}" for note in answer.notes])}
<p class="mute">run {_text(run)}; made by hypocenter {__version__}, <code>hypocenter headroom</code></p>
</main></body></html>
"""


def _list(lines: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{_text(line)}</li>" for line in lines) + "</ul>" if lines else ""


def _folds(answer: Answer) -> Iterator[str]:
    """Each phase, in it each module, what is nearest to its limit first; the first of a phase is open."""
    for total in answer.phases:
        groups: dict[str, list[Line]] = {}
        for line in _drawn(answer):
            if line.phase == total.phase:
                groups.setdefault(".".join(line.site.split(".")[:MODULE_PARTS]), []).append(line)
        if groups:
            yield f"<h2>{_text(total.phase)}</h2>"
        for at, (module, lines) in enumerate(sorted(groups.items(), key=lambda item: _risk(item[1]))):
            worst = min(lines, key=lambda line: _risk([line]))
            bad = sum(bool(line.overflows) for line in lines)
            about = f"{wording.count(len(lines), 'site')}, least headroom {sentences.bits(worst)}"
            about += f", {bad:,} overflow{'s' if bad == 1 else ''}" if bad else ""
            picture = _rows_svg(answer, lines, f"{total.phase} of {module or 'the model'}: {about}")
            yield (
                f"<details{' open' if at == 0 else ''}><summary><code>{_text(module or '(model)')}</code> "
                f'<span class="mute">{_text(about)}</span></summary>'
                f'<div class="scroll" tabindex="0">{picture}</div></details>'
            )


def _risk(lines: Sequence[Line]) -> float:
    return min((line.bits for line in lines if line.bits is not None), default=math.inf)


def _drawn(answer: Answer) -> list[Line]:
    return [x for x in answer.lines if x.hist or x.bits is not None][:MOST_ROWS]


def _left_out(answer: Answer) -> str:
    n = len(answer.lines) - len(_drawn(answer))
    return f"{wording.count(n, 'site')} without values or beyond {MOST_ROWS} not drawn" if n else ""


def _legend(answer: Answer) -> str:
    told = "each row is a site, each cell a span of magnitudes, darker for more values"
    return "; ".join(filter(None, (told, "modules with the least headroom first", _left_out(answer))))


def _rows_svg(answer: Answer, lines: Sequence[Line], label: str) -> str:
    axis, height = axis_of(answer.format, MOST_CELLS), TOP - 24 + ROW * len(lines)
    rows = (part for at, line in enumerate(lines) for part in _row(line, axis, TOP - 28 + ROW * at))
    body = "".join([*_heading(axis, up=30), *_limits(axis, TOP - 28, ROW * len(lines)), *rows])
    return _opened(height, label) + f"{body}</svg>"


def _opened(height: int, label: str, style: str = "") -> str:
    """An SVG element with its background, and with its style where no page around it has that."""
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


def _heading(axis: Axis, up: int = 0) -> Iterator[str]:
    """Names of the zones, exponents, and the columns to the right, so much higher than in the whole picture."""
    for zone, name in ZONES.items():
        cells = [i for i, z in enumerate(axis.zones) if z == zone]
        if cells:
            middle = (_x(axis, cells[0]) + _x(axis, cells[-1] + 1)) / 2
            yield f'<text class="{zone} middle" x="{middle:.1f}" y="{44 - up}">{name}</text>'
    every = max(1, round(axis.n_cells / 8))
    for i in range(0, axis.n_cells, every):
        yield f'<text class="mute" x="{_x(axis, i):.1f}" y="{58 - up}">2^{axis.first + i * axis.octaves}</text>'
    for x, name in ((955, "headroom"), (1020, "overflow"), (1090, "to zero"), (1165, "subnormal")):
        yield f'<text class="mute end" x="{x}" y="{58 - up}">{name}</text>'


def _limits(axis: Axis, y: int, height: int) -> Iterator[str]:
    """Dashed lines where one zone ends and the next begins."""
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


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"
