"""The data a page carries: packed grids, curves, and where each finding and table row lies in them."""

from __future__ import annotations

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions when it is imported)
import base64
import bisect
import gzip
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hypocenter.formats import LARGEST
from hypocenter.nouns import Diagnosis, StepRecord
from hypocenter.report import wording
from hypocenter.report.page.budget import fit
from hypocenter.report.page.carried import carried_of
from hypocenter.report.page.codes import encode
from hypocenter.report.page.curves import curves_of
from hypocenter.report.page.diary import DiaryView
from hypocenter.report.page.grid import COLUMNS, Grid, Row, grid_of
from hypocenter.report.page.upstream import Upstream

RUN_BYTES = 1_450_000  # packed grid of the run itself: the rest of 2 MB is scripts, cards and the replay
REPLAY_BYTES = 250_000  # packed grid of replayed steps


def payload(
    table: pa.Table,
    records: Sequence[tuple[int, StepRecord]],
    diagnosis: Diagnosis,
    upstream: Upstream | None,
    diary: DiaryView | None,
    replayed: Mapping[int, float],
) -> dict[str, Any]:
    """Everything the scripts read, as plain JSON values.

    Args:
        replayed: loss scales of replayed steps (page.carried).
    """
    named = ((f.site if f.site is not None else f.param, f.port or "") for f in diagnosis.findings)
    flagged = frozenset((name, port) for name, port in named if name is not None)
    cells = table.select(COLUMNS)
    panels: list[dict[str, Any]] = []
    grids: list[Grid] = []
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
    return {
        "panels": panels,
        "curves": asdict(curves_of(records)),
        "diary": diary.chart if diary else None,
        "log2_limits": {name: math.log2(limit) for name, limit in LARGEST.items()},
        "first": _first(panels),
        "lines": [_find_line(line.site, line.port, grids) for line in upstream.lines] if upstream else [],
    }


def _with_ranks(table: pa.Table, is_replay: bool) -> pa.Table:
    """What tells the loss scale of a gradient."""
    part = table.select(("rank", "step", "phase", "n_hist", "sumsq", "replay"))
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
        "marks": _marks(grid, diagnosis),
        "packed_meta": _pack_meta(grid),
        "packed_codes": packed,
    }


def _pack_meta(grid: Grid) -> str:
    tops = encode(grid.absmax)[1]
    rows = [{**_shown(row), "top": top} for row, top in zip(grid.rows, tops, strict=True)]
    text = json.dumps({"steps": grid.steps, "rows": rows}, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=6, mtime=0)).decode("ascii")


def _shown(row: Row) -> dict[str, str]:
    return {name: wording.clean(value) for name, value in asdict(row).items()}


def _marks(grid: Grid, diagnosis: Diagnosis) -> list[tuple[int, int]]:
    """Row and column of each finding that is not a note, in the diagnosis' order."""
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


def _row(grid: Grid, site: str, port: str, op: str) -> int | None:
    """The row of a finding: same site, port and operator if possible, else the best that is there."""
    best, best_score = None, 0
    for index, row in enumerate(grid.rows):
        score = 4 * (row.site == site) + 2 * (row.port == port) + (row.op == op)
        if row.site == site and score > best_score:
            best, best_score = index, score
    return best


def _first(panels: list[dict[str, Any]]) -> dict[str, int]:
    for index, panel in enumerate(panels):
        if panel["marks"]:
            return {"panel": index, "row": panel["marks"][0][0]}
    return {"panel": 0, "row": 0}


def _find_line(site: str, port: str, grids: list[Grid]) -> list[int] | None:
    for panel, grid in enumerate(grids):
        for index, row in enumerate(grid.rows):
            if row.site == site and row.port == port:
                return [panel, index]
    return None
