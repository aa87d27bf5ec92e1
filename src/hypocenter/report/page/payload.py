"""The data a page carries: packed grids, curves, and where each finding and table row lies in them.

A grid as bytes: log2 of the magnitude in quarter bits, one byte a cell, packed for a page.

Per row a `top` (the largest log2 of the row, rounded up to a quarter) fixes the scale: a code c in 2..254 means
log2 |max| = top + (c - 254) / 4, so a row spans 63 bits below its top, at a precision of an eighth of a bit (9 %).
"""

from __future__ import annotations

import base64
import bisect
import gzip
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from xml.sax.saxutils import escape

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from markupsafe import Markup

from hypocenter.diagnose.evidence import Evidence
from hypocenter.formats import LARGEST
from hypocenter.nouns import Diagnosis, StepRecord
from hypocenter.report import wording
from hypocenter.report.headroom.scales import carried_scales
from hypocenter.report.page.blocks import by_block, by_span, deepest
from hypocenter.report.page.diary import DiaryView
from hypocenter.report.page.grid import COLUMNS, Grid, Row, grid_of
from hypocenter.report.page.upstream import Upstream

RUN_BYTES = 1_450_000  # packed grid of the run itself: the rest of 2 MB is scripts, cards and the replay
REPLAY_BYTES = 250_000  # packed grid of replayed steps
MISSING, ZERO, HIGHEST, NOT_FINITE = 0, 1, 254, 255
PER_BIT = 4  # codes per doubling


def payload(
    table: pa.Table,
    records: Sequence[tuple[int, StepRecord]],
    diagnosis: Diagnosis,
    upstream: Upstream | None,
    diary: DiaryView | None,
    replayed: Mapping[int, float],
) -> tuple[dict[str, Any], list[Still]]:
    """Return everything the scripts read, as plain JSON values, and the maps as pictures for where no script runs.

    Args:
        replayed: loss scales of replayed steps (page.carried).
    """
    named = ((f.site if f.site is not None else f.param, f.port or "") for f in diagnosis.findings)
    flagged = frozenset((name, port) for name, port in named if name is not None)
    cells = table.select(COLUMNS)
    panels: list[dict[str, Any]] = []
    grids: list[Grid] = []
    stills: list[Still] = []
    for title, is_replay, limit_bytes in (
        ("Where, in the replay", True, REPLAY_BYTES),
        ("Where and when", False, RUN_BYTES),
    ):
        part = cells.filter(cells["replay"] if is_replay else pc.invert(cells["replay"]))
        grid = grid_of(part, keep=flagged)
        if grid.rows:
            shown, packed, remarks = fit(grid, flagged, limit_bytes)
            panel = _panel(title, shown, packed, remarks, diagnosis, is_replay=is_replay)
            scales = replayed if is_replay else None
            carried = carried_of(_with_ranks(table, is_replay), records, shown.steps, scales)
            panels.append(panel | {"carried": carried})
            grids.append(shown)
            stills.append(still_of(title, grid, _marks(grid, diagnosis)))
    data = {
        "panels": panels,
        "diary": diary.chart if diary else None,
        "log2_limits": {name: math.log2(limit) for name, limit in LARGEST.items()},
        "first": _first(panels),
        "finding_steps": sorted({finding.step for finding in diagnosis.findings if finding.severity != "note"}),
        "lines": [_find_line(line.site, line.port, grids) for line in upstream.lines] if upstream else [],
    }
    return data, stills


def _with_ranks(table: pa.Table, is_replay: bool) -> pa.Table:
    """Return the rows and columns that tell the loss scale of a gradient."""
    part = table.select(("rank", "step", "phase", "port", "n_hist", "sumsq", "replay"))
    return part.filter(part["replay"] if is_replay else pc.invert(part["replay"]))


def _panel(
    title: str, grid: Grid, packed: str, remarks: tuple[str, ...], diagnosis: Diagnosis, *, is_replay: bool
) -> dict[str, Any]:
    steps = f"step {grid.steps[0]}" if len(grid.steps) == 1 else f"steps {grid.steps[0]} to {grid.steps[-1]}"
    about = [f"{wording.count(len(grid.rows), 'row')} in execution order", steps]
    about += [
        "step executed again after it failed" if is_replay else "largest of all ranks and micro-batches",
        *remarks,
    ]
    return {
        "title": title,
        "about": "; ".join(about),
        "marks": (marks := _marks(grid, diagnosis)),
        "first": marks[0][0] if marks else _blamed(grid, diagnosis),
        "packed_meta": _pack_meta(grid),
        "packed_codes": packed,
    }


def _pack_meta(grid: Grid) -> str:
    tops = encode(grid.absmax)[1]
    rows = [{**_shown(row), "top": top} for row, top in zip(grid.rows, tops, strict=True)]
    text = json.dumps({"steps": grid.steps, "rows": rows}, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=6, mtime=0)).decode("ascii")


def _shown(row: Row) -> dict[str, str | int]:
    return {name: wording.clean(value) if isinstance(value, str) else value for name, value in asdict(row).items()}


def _marks(grid: Grid, diagnosis: Diagnosis) -> list[tuple[int, int]]:
    """Return row and column of each finding that is not a note, in the diagnosis' order."""
    marks: list[tuple[int, int]] = []
    for finding in diagnosis.findings:
        name = finding.site if finding.site is not None else finding.param
        if finding.severity == "note" or name is None or not grid.steps:
            continue
        row = _row(grid, name, finding.port or "", finding.op or "")
        column = bisect.bisect_right(grid.steps, finding.step) - 1
        if row is not None and column >= 0 and not math.isnan(grid.absmax[row, column]):
            marks.append((row, column))
    return marks


def _blamed(grid: Grid, diagnosis: Diagnosis) -> int:
    """Return the row to look at if the first finding has none: in its module, else not finite at its step, else 0."""
    first = next((finding for finding in diagnosis.findings if finding.severity != "note"), None)
    if first is None or not grid.rows:
        return 0
    names = [row.site for row in grid.rows]
    for name in filter(None, (first.param, first.site)):
        inside = next((i for i, site in enumerate(names) if site == name or site.startswith(f"{name}.")), None)
        if inside is not None:
            return inside
    column = bisect.bisect_left(grid.steps, first.step)
    bad = np.flatnonzero(np.isinf(grid.absmax[:, min(column, len(grid.steps) - 1)]))
    return int(bad[0]) if len(bad) else 0


def _row(grid: Grid, site: str, port: str, op: str) -> int | None:
    """Return the row of a finding: same site, port and operator if possible; None when its site has no row."""
    best, best_score = None, 0
    for index, row in enumerate(grid.rows):
        score = 4 * (row.site == site) + 2 * (row.port == port) + (row.op == op)
        if row.site == site and score > best_score:
            best, best_score = index, score
    return best


def _first(panels: list[dict[str, Any]]) -> dict[str, int]:
    for index, panel in enumerate(panels):
        if panel["marks"]:
            return {"panel": index, "row": panel["first"]}
    return {"panel": 0, "row": panels[0]["first"] if panels else 0}


def _find_line(site: str, port: str, grids: list[Grid]) -> list[int] | None:
    for panel, grid in enumerate(grids):
        for index, row in enumerate(grid.rows):
            if row.site == site and row.port == port:
                return [panel, index]
    return None


def encode(absmax: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.uint8], list[float]]:
    """Return codes of the same shape, and each row's top (log2)."""
    usable = np.isfinite(absmax) & (absmax > 0)
    log2 = np.log2(np.where(usable, absmax, 1.0))
    highest = np.max(np.where(usable, log2, -np.inf), axis=1, initial=-np.inf)
    top = np.where(np.isfinite(highest), np.ceil(highest * PER_BIT) / PER_BIT, 0.0)
    codes = np.clip(np.rint(HIGHEST - (top[:, None] - log2) * PER_BIT), ZERO + 1, HIGHEST)
    codes = np.where(absmax == 0, ZERO, codes)
    codes = np.where(np.isposinf(absmax), NOT_FINITE, codes)
    return np.where(np.isnan(absmax), MISSING, codes).astype(np.uint8), top.tolist()


def pack(codes: npt.NDArray[np.uint8]) -> str:
    """Pack differences along each row by gzip and base64: neighbours in time are alike and compress well."""
    delta = np.diff(codes, axis=1, prepend=np.zeros((len(codes), 1), np.uint8))
    return base64.b64encode(gzip.compress(delta.tobytes(), compresslevel=6, mtime=0)).decode("ascii")


def fit(grid: Grid, flagged: frozenset[tuple[str, str]], limit_bytes: int) -> tuple[Grid, str, tuple[str, ...]]:
    """Merge the grid until its packed form is at most `limit_bytes`.

    Returns:
        The grid to show, its packed codes, and a sentence for everything that was merged. Rows whose (site, port) is
        flagged are never merged with others.
    """
    remarks: tuple[str, ...] = ()
    shown, packed = grid, _packed(grid, limit_bytes)
    for depth in range(deepest(grid) - 1, 0, -1):
        if packed is not None:
            break
        shown = by_block(grid, depth, flagged)
        remarks = (
            f"{len(grid.rows):,} sites are merged into {len(shown.rows):,} rows, one per block; flagged in full",
        )
        packed = _packed(shown, limit_bytes)
    blocks = shown
    span = 1
    while packed is None and len(shown.steps) > 1:
        span *= 2
        shown = by_span(blocks, span)
        packed = _packed(shown, limit_bytes)
    if span > 1:
        remarks = (*remarks, f"{len(grid.steps):,} steps are merged by {span:,}; each cell is the largest of its span")
    return shown, packed or "", remarks


def _packed(grid: Grid, limit_bytes: int) -> str | None:
    n_names = sum(len(row.site.encode()) + len(row.port.encode()) + 40 for row in grid.rows)
    if n_names + grid.absmax.size / 1000 > limit_bytes:  # gzip never packs better than about 1000 to 1
        return None
    packed = pack(encode(grid.absmax)[0])
    return packed if len(packed) + n_names <= limit_bytes else None


def replayed_scales(evidence: Iterable[Evidence]) -> dict[int, float]:
    """Return by step the loss scale of a failed step's replay, where that was not the step's own."""
    return {e.step: e.replayed_scale for e in evidence if e.replayed_scale is not None}


def carried_of(
    table: pa.Table,
    records: Sequence[tuple[int, StepRecord]],
    steps: Sequence[int],
    replayed: Mapping[int, float] | None = None,
) -> dict[str, list[float]]:
    """Return log2 of the loss scale in the values of `backward`, `grad` and `scaler`, one per step; 0 without a scaler.

    Args:
        replayed: of a grid of replayed steps: their scales (see `replayed_scales`).
    """
    by_step: dict[int, float] = {}
    for _, record in sorted(records, key=lambda pair: -pair[0]):  # the lowest rank has the last word
        scale = (replayed or {}).get(record.step, record.loss_scale)
        if scale is not None and 0.0 < scale < math.inf:
            by_step[record.step] = math.log2(scale)
    in_backward = [by_step.get(step, by_step.get(step - 1, 0.0)) for step in steps]
    in_grads = _of_grads(table, records) if by_step else {}
    usual = next(iter(in_grads.values()), 0.0)
    return {
        "backward": in_backward,
        "grad": [in_grads.get(step, usual) for step in steps],
        "scaler": [by_step.get(step, 0.0) for step in steps],
    }


def _of_grads(table: pa.Table, records: Sequence[tuple[int, StepRecord]]) -> dict[int, float]:
    """Return by step log2 of the scale in recorded gradients: the program may have taken it out before."""
    grads = table.filter(pc.and_(pc.equal(table["phase"], "grad"), pc.greater(table["n_hist"], 0)))
    if grads.num_rows == 0:
        return {}
    carried, _ = carried_scales(grads, records)
    return {step: math.log2(scale) for step, scale in zip(grads["step"].to_pylist(), carried, strict=True)}


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
