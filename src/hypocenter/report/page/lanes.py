"""A lane for each rank: its steps one after the other, as long as they took, marked where they went wrong."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from markupsafe import Markup

from hypocenter.nouns import Diagnosis, StepRecord
from hypocenter.report import wording
from hypocenter.report.job_steps import was_skipped_by_scaler
from hypocenter.report.page.curves import is_bad

MOST_LANES = 32  # of more ranks those that were named or went bad, and then the lowest
MOST_SLICES = 1500  # of one lane: the picture is about 1,000 pixels wide
USUAL, SKIPPED, BAD, FOUND = range(4)  # what a slice is; of steps that share one, the worst
NAMES = ("a step", "skipped by the loss scaler", "not finite", "a finding")
WIDTH, _NAME, _LANE, _GAP, _FOOT = 900, 80, 16, 4, 30  # units of the picture: pixels at its usual size


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """The steps of one rank, as a lane of the page."""

    rank: int
    steps: tuple[int, ...]  # the first of each slice
    ms: tuple[float, ...]  # how long each slice took
    kinds: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """The lanes, and what the page shows with them."""

    about: str
    svg: Markup  # over steps; lanes.js draws over time too, and zooms
    legend: tuple[tuple[int, str], ...]
    data: dict[str, Any]


def lanes_of(records: Sequence[tuple[int, StepRecord]], diagnosis: Diagnosis) -> Lanes | None:
    """Return the lanes of a job; None for a recording of one rank, or of one step.

    Args:
        records: every (rank, step record).
    """
    by_rank: dict[int, dict[int, StepRecord]] = {}
    for rank, record in records:
        by_rank.setdefault(rank, {})[record.step] = record
    steps = sorted({record.step for _, record in records})
    if len(by_rank) < 2 or len(steps) < 2:
        return None
    found = {(f.rank, f.step) for f in diagnosis.findings if f.severity != "note"}
    told = {rank for rank, _ in found} | {rank for rank, rows in by_rank.items() if any(map(is_bad, rows.values()))}
    chosen = sorted(sorted(by_rank, key=lambda rank: (rank not in told, rank))[:MOST_LANES])
    span = -(-len(steps) // MOST_SLICES)
    lanes = [_lane(rank, by_rank[rank], found, span) for rank in chosen]
    about = ["each slice is a step"] if span == 1 else [f"each slice is {span} steps"]
    if len(chosen) < len(by_rank):
        about.append(f"{len(chosen)} of {len(by_rank):,} ranks, those that were named or went bad before others")
    used = {kind for lane in lanes for kind in lane.kinds}
    return Lanes(
        about="; ".join(about),
        svg=_svg(lanes, steps[0], steps[-1] + 1),
        legend=tuple((kind, name) for kind, name in enumerate(NAMES) if kind in used),
        data={"end": steps[-1] + 1, "lanes": [_packed(lane) for lane in lanes]},
    )


def _lane(rank: int, rows: dict[int, StepRecord], found: set[tuple[int, int]], span: int) -> Lane:
    ordered = sorted(rows)
    slices = [ordered[at : at + span] for at in range(0, len(ordered), span)]
    return Lane(
        rank=rank,
        steps=tuple(group[0] for group in slices),
        ms=tuple(float(f"{sum(rows[step].step_ms for step in group):.4g}") for group in slices),
        kinds=tuple(max(_kind(rows[step], (rank, step) in found) for step in group) for group in slices),
    )


def _kind(record: StepRecord, is_found: bool) -> int:
    if is_found:
        return FOUND
    return BAD if is_bad(record) else SKIPPED if was_skipped_by_scaler(record) else USUAL


def _packed(lane: Lane) -> dict[str, Any]:
    """Return a lane as lanes.js reads it: the first step, then differences."""
    steps = [lane.steps[0], *(b - a for a, b in itertools.pairwise(lane.steps))]
    return {"rank": lane.rank, "steps": steps, "ms": lane.ms, "kinds": "".join(map(str, lane.kinds))}


def _svg(lanes: Sequence[Lane], first: int, end: int) -> Markup:
    foot = len(lanes) * (_LANE + _GAP)
    label = f"steps {first:,} to {end - 1:,} of {wording.count(len(lanes), 'rank')}, a lane each"
    return Markup(
        f'<svg class="lanes" viewBox="0 0 {WIDTH} {foot + _FOOT}" role="img" aria-label="{escape(label)}">'
        f"{''.join(_parts(lanes, first, end, foot))}</svg>"
    )


def _parts(lanes: Sequence[Lane], first: int, end: int, foot: int) -> Iterator[str]:
    scale = (WIDTH - _NAME - 8) / (end - first)
    for at, lane in enumerate(lanes):
        y = at * (_LANE + _GAP)
        yield f'<text class="end" x="{_NAME - 8}" y="{y + 12}">rank {lane.rank}</text>'
        begin = 0
        for i in range(1, len(lane.steps) + 1):
            if i == len(lane.steps) or lane.kinds[i] != lane.kinds[begin]:
                x = _NAME + (lane.steps[begin] - first) * scale
                until = (
                    lane.steps[i] if i < len(lane.steps) else min(end, 2 * lane.steps[-1] - lane.steps[max(i - 2, 0)])
                )
                wide = max(1.0, (until - lane.steps[begin]) * scale)
                yield f'<rect class="k{lane.kinds[begin]}" x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{_LANE}"/>'
                begin = i
    for tick in range(6):
        step = first + (end - 1 - first) * tick // 5
        yield f'<text class="mid" x="{_NAME + (step + 0.5 - first) * scale:.1f}" y="{foot + 16}">{step:,}</text>'
    yield f'<text class="end" x="{_NAME - 8}" y="{foot + 16}">step</text>'
