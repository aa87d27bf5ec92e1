"""The list of runs as a part of a page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hypocenter.nouns import StepRecord
from hypocenter.record.layout import DIAGNOSIS_FILE
from hypocenter.record.tail import read_regular
from hypocenter.report import wording
from hypocenter.report.page.document import shell
from hypocenter.view import page
from hypocenter.view.findings import from_json
from hypocenter.view.following import FollowedRun
from hypocenter.view.runs import name_of
from hypocenter.view.shown import Piece, Shown, since

_MOST_BYTES = 4 << 20  # of a diagnosis
_WIDTH, _HEIGHT = 120, 24
_KEPT: dict[Path, tuple[int, str]] = {}
_MOST_KEPT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLine:
    """One run in the list of runs."""

    name: str  # in addresses
    shown: str
    status: str
    loss: str
    path: str  # of a small curve
    last_step: str
    ranks: str
    began: str
    finding: str


def overview_shown(runs: Sequence[FollowedRun], n_hidden: int, n_coming: int = 0) -> Shown:
    """Return the page of all runs as they are now.

    Args:
        runs: that were looked at.
        n_hidden: older ones, which are not.
        n_coming: that will be looked at.
    """
    lines = [_line(run) for run in runs]
    html = shell(page.__name__, "parts.html.j2").module.overview(lines, n_hidden, n_coming)  # pyright: ignore
    n_running = sum(run.is_running for run in runs)
    title = f"{wording.count(len(runs), 'run')}, {n_running} running"
    return Shown(parts={"list": Piece(str(html).encode("utf-8", "replace"))}, title=title, turn="", is_over=False)


def _line(run: FollowedRun) -> RunLine:
    records = run.course.records()
    last = records[-1] if records else None
    finding = _finding(run.directory)
    if not finding and run.first_bad_step is not None:
        finding = f"not finite from step {run.first_bad_step:,} on"
    return RunLine(
        name=name_of(run.directory), shown=wording.clean(run.directory.name, 80), status=run.status,
        loss=wording.number(last.loss) if last is not None and last.loss is not None else "", path=sparkline(records),
        last_step=f"{last.step:,}" if last is not None else "", ranks=f"{run.run.world_size or 1:,}",
        began=since(run.run.started), finding=finding,
    )  # fmt: skip


def sparkline(records: Sequence[StepRecord]) -> str:
    """Return the loss as the path of a small picture; empty for fewer than two points."""
    points = [(r.step, r.loss) for r in records if r.loss is not None and math.isfinite(r.loss)]
    if len(points) < 2:
        return ""
    low, high = min(v for _, v in points), max(v for _, v in points)
    first, last = points[0][0], records[-1].step  # what is not finite at the end is an end without a line
    x = (_WIDTH - 2) / max(last - first, 1)
    y = (_HEIGHT - 4) / (high - low) if high > low else 0.0
    return "M" + "L".join(f"{1 + (s - first) * x:.1f} {2 + (high - v) * y:.1f}" for s, v in points)


def _finding(directory: Path) -> str:
    """Return the first finding of diagnosis.json; the file is read again only when it has changed."""
    path = directory / DIAGNOSIS_FILE
    try:
        changed_ns = path.stat().st_mtime_ns
        kept = _KEPT.get(path)
        if kept is not None and kept[0] == changed_ns:
            return kept[1]
        found = from_json(read_regular(path, _MOST_BYTES))
    except (OSError, ValueError, TypeError, RecursionError):
        return ""
    first = next((f for f in found.findings if f.severity != "note"), None)
    text = "" if first is None else f"{first.code} {wording.sentence(first.title)}, step {first.step:,}"
    if len(_KEPT) >= _MOST_KEPT:
        _KEPT.clear()
    _KEPT[path] = changed_ns, text
    return text
