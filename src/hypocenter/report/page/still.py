"""The maps of where and when as pictures: what is seen without scripts, and on paper. Modules, not each row of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from hypocenter.formats import LARGEST
from hypocenter.report import wording
from hypocenter.report.page.blocks import by_block, by_span, deepest
from hypocenter.report.page.grid import Grid, Row

MOST_ROWS, MOST_STEPS = 34, 120
WIDTH, _NAME, _ROW, _TOP, _FOOT = 900, 300, 15, 4, 34  # units of the picture: pixels at its usual size
_BITS, _SHADES = 16, 9  # headroom at which the colours end, and how many there are
_OFF, _OFF_SHADES = 8, 4  # doublings away from its median at which a norm's colours end
LEGEND = (
    ("bad", "not finite"), ("h0", "no headroom"), ("h4", "8 bits"), ("h8", "16 bits or more"),
    ("u3", "norm far above its median"), ("d3", "far below"), ("plain", "usual, or headroom not known"),
    ("zero", "all zero"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Still:
    """One map as a picture."""

    title: str
    about: str
    svg: Markup
    legend: tuple[tuple[str, str], ...]  # (class of the swatch, meaning), of what the picture holds


def still_of(title: str, grid: Grid, marks: Sequence[tuple[int, int]]) -> Still:
    """Draw a grid, its modules merged until they fit on a page.

    Args:
        grid: sites in execution order against steps.
        marks: row and column of each finding; these rows stay by themselves.
    """
    flagged = frozenset((grid.rows[row].site, grid.rows[row].port) for row, _ in marks)
    shown = grid
    for depth in range(deepest(grid) - 1, 0, -1):
        if len(shown.rows) <= MOST_ROWS:
            break
        shown = by_block(grid, depth, flagged)
    span = max(1, math.ceil(len(grid.steps) / MOST_STEPS))
    shown = by_span(shown, span) if span > 1 else shown
    kept = _cut(shown, flagged)
    n_left = len(shown.rows) - len(kept.rows)
    names = {(row.site, row.port, row.op): at for at, row in enumerate(kept.rows)}
    found = [(names.get((r.site, r.port, r.op)), col // span) for r, col in ((grid.rows[at], c) for at, c in marks)]
    classes = _classes(kept)
    about = [f"{wording.count(len(kept.rows), 'row')} of modules in execution order, the largest of each"]
    about += [f"{n_left:,} more not drawn"] * bool(n_left) + [f"{span} steps a cell"] * (span > 1)
    used = {name for row in classes for name in row if name}
    return Still(
        title=title,
        about="; ".join(about),
        svg=_svg(title, kept, classes, [(row, col) for row, col in found if row is not None]),
        legend=tuple((name, text) for name, text in LEGEND if _is_used(name, used)),
    )


def _cut(grid: Grid, flagged: frozenset[tuple[str, str]]) -> Grid:
    """Return the grid with its first rows, and with rows that are flagged wherever they are."""
    first = sorted(range(len(grid.rows)), key=lambda at: (grid.rows[at].site, grid.rows[at].port) not in flagged)
    chosen = sorted(first[: 2 * MOST_ROWS])
    return Grid(rows=tuple(grid.rows[at] for at in chosen), steps=grid.steps, absmax=grid.absmax[chosen])


def _is_used(name: str, used: set[str]) -> bool:
    return name in used or (name[0] in "hud" and any(one[0] == name[0] and one[1:].isdigit() for one in used))


def _classes(grid: Grid) -> list[list[str]]:
    """Return for each cell the class of its colour; empty where nothing was recorded."""
    return [_of_row(row, values) for row, values in zip(grid.rows, grid.absmax, strict=True)]


def _of_row(row: Row, values: npt.NDArray[np.float64]) -> list[str]:
    known = values[np.isfinite(values) & (values > 0)]
    median = float(np.median(np.log2(known))) if len(known) else 0.0
    limit = math.log2(LARGEST[row.dtype]) if row.dtype in LARGEST else None
    return [_class(row, float(value), median, limit) for value in values]


def _class(row: Row, value: float, median: float, limit: float | None) -> str:
    if math.isnan(value):
        return ""
    if math.isinf(value):
        return "bad"
    if value == 0.0:
        return "zero"
    log2 = math.log2(value)
    if row.measure == "norm":
        off = log2 - median
        shade = min(_OFF_SHADES - 1, int(abs(off) / _OFF * _OFF_SHADES))
        return "plain" if abs(off) < 1 else f"{'u' if off > 0 else 'd'}{shade}"
    if limit is None:
        return "plain"
    return f"h{min(_SHADES - 1, int(max(0.0, limit - log2) / _BITS * _SHADES))}"


def _svg(title: str, grid: Grid, classes: list[list[str]], marks: Sequence[tuple[int, int]]) -> Markup:
    n, m = len(grid.rows), len(grid.steps)
    foot = _TOP + n * _ROW
    cell = min((WIDTH - _NAME - 4) / max(m, 1), 48.0)
    parts = [f'<path class="{name}" d="{"".join(shapes)}"/>' for name, shapes in sorted(_shapes(classes, cell).items())]
    for at, row in enumerate(grid.rows):
        name = escape(wording.cut_middle(wording.clean(_name(row)), 44))
        parts.append(f'<text class="end" x="{_NAME - 6}" y="{_TOP + at * _ROW + 11}">{name}</text>')
    every = max(1, math.ceil(m / max(1, int(m * cell / 70))))
    for at in range(0, m, every):
        x = round(_NAME + (at + 0.5) * cell, 1)
        parts.append(f'<text class="mid" x="{x}" y="{foot + 20}">{grid.steps[at]:,}</text>')
    parts.append(f'<text class="end" x="{_NAME - 6}" y="{foot + 20}">step</text>')
    for row, col in marks:
        x, y = round(_NAME + col * cell, 1), _TOP + row * _ROW
        wide = max(round(cell, 1), 8)
        parts.append(f'<rect class="box" x="{x}" y="{y}" width="{wide}" height="{_ROW - 1}"/>')
        middle = round(x + wide / 2, 1)
        parts.append(f'<path class="mark" d="M{middle} {foot + 1}l-5 7h10z"/>')
    label = f"{title}: {wording.count(n, 'row')} against {wording.count(m, 'step')}, what is in each cell by colour"
    return Markup(
        f'<svg class="map" viewBox="0 0 {WIDTH} {foot + _FOOT}" role="img" aria-label="{escape(label)}">'
        f"{''.join(parts)}</svg>"
    )


def _name(row: Row) -> str:
    call, phase = f" call {row.call}" if row.call else "", "" if row.phase == "forward" else f" ({row.phase})"
    return f"{row.site or '(model)'}{call} {row.op.removeprefix('aten.') or row.port}{phase}"


def _shapes(classes: list[list[str]], cell: float) -> dict[str, list[str]]:
    """Return for each colour the shapes of its cells; neighbours of one colour are one shape."""
    shapes: dict[str, list[str]] = {}
    for at, row in enumerate(classes):
        y, begin = _TOP + at * _ROW, 0
        for col in range(1, len(row) + 1):
            if col == len(row) or row[col] != row[begin]:
                if row[begin]:
                    x, wide = _NAME + begin * cell, (col - begin) * cell
                    shape = f"M{x:.1f} {y}h{wide:.1f}v{_ROW - 1}h-{wide:.1f}z"
                    shapes.setdefault(row[begin], []).append(shape)
                begin = col
    return shapes
