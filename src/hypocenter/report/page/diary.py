"""The loss-scale diary for the page: the scale over steps, skipped steps, and the parameters that overflowed."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hypocenter.detect.diary import FOUND_INF, SCALE, SCALED_GRAD, share_nonfinite
from hypocenter.nouns import StepRecord
from hypocenter.report import wording
from hypocenter.report.diary import percent
from hypocenter.report.diary import scale as in_words

MOST_POINTS = 4000  # of the curve; the scale is a staircase, of which only the edges are kept
MOST_CULPRITS = 4  # named at one step of the chart
MOST_LINES = 12  # of the table
MOST_NAMED_STEPS = 300  # skipped steps whose culprits the chart can tell: 400 bytes each


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A parameter whose gradient overflowed, over all steps; `largest` is with the loss scale still in it."""

    param: str
    n_overflows: int
    first_step: int
    last_step: int
    share: str  # of its elements that were not finite, at worst
    largest: str  # finite magnitude, while others of its elements were not
    unscaled: str  # the same without the scale


@dataclass(frozen=True, slots=True, kw_only=True)
class DiaryView:
    """What a page shows of one rank's diary."""

    summary: str
    lines: tuple[Line, ...]
    n_more: int  # parameters that are not in `lines`
    chart: dict[str, Any]  # what diary.js draws


@dataclass(frozen=True, slots=True, kw_only=True)
class _Culprit:
    step: int
    param: str
    share: float | None  # None: not known
    largest: float
    scale: float


def diary_of(table: pa.Table, records: Sequence[tuple[int, StepRecord]]) -> DiaryView | None:
    """Return the diary of the lowest rank that has one; None for a run without a loss scaler.

    Args:
        table: all readings, with `rank`.
        records: every (rank, step record).
    """
    rows = table.filter(pc.and_(pc.equal(table["phase"], "scaler"), pc.invert(table["replay"])))
    is_scale = pc.and_(pc.equal(rows["site"], SCALE), pc.equal(rows["port"], "value"))
    if not pc.any(is_scale).as_py():
        return None
    ranks = pc.unique(rows.filter(is_scale)["rank"]).to_pylist()
    rank = min(ranks)
    is_mine = pc.equal(rows["rank"], rank)
    mine = rows.filter(is_mine)
    scale_rows = rows.filter(pc.and_(is_scale, is_mine))
    scales = dict(zip(scale_rows["step"].to_pylist(), _numbers(scale_rows), strict=True))
    skipped = _skipped(mine) | {record.step for of, record in records if of == rank and record.skipped}
    culprits = _culprits(mine, scales)
    lines = _lines(culprits)
    kinds = [str(kind) for kind in pc.unique(scale_rows["module"]).to_pylist() if kind]
    steps = sorted(scales)
    whose = wording.clean(" and ".join(kinds) or "a loss scaler") + (f", rank {rank}" if len(ranks) > 1 else "")
    return DiaryView(
        summary=_summary(whose, steps, scales, skipped),
        lines=tuple(lines[:MOST_LINES]),
        n_more=max(0, len(lines) - MOST_LINES),
        chart=_chart(steps, scales, skipped, culprits),
    )


def _numbers(rows: pa.Table) -> list[float]:
    """Return the number that each row of one element holds."""
    columns: list[Any] = [rows[name].to_pylist() for name in ("sum", "n_nan", "n_posinf")]
    return [math.nan if nan else math.inf if inf else value for value, nan, inf in zip(*columns, strict=True)]


def _skipped(rows: pa.Table) -> set[int]:
    found = pc.and_(pc.starts_with(rows["site"], FOUND_INF), pc.equal(rows["port"], "value"))
    return set(rows.filter(pc.and_(found, pc.greater(rows["sum"], 0.0)))["step"].to_pylist())


def _culprits(rows: pa.Table, scales: Mapping[int, float]) -> list[_Culprit]:
    n_bad = pc.add(pc.add(rows["n_nan"], rows["n_posinf"]), rows["n_neginf"])
    is_bad = pc.and_(pc.equal(rows["port"], SCALED_GRAD), pc.greater(n_bad, 0))
    bad = rows.filter(is_bad)
    columns: list[Any] = [bad[name].to_pylist() for name in ("step", "site", "n", "shape", "absmax")]
    counts = n_bad.filter(is_bad).to_pylist()
    return [
        _Culprit(
            step=step, param=site, share=share_nonfinite(n, count, shape), largest=largest,
            scale=scales.get(step, math.nan),
        )
        for step, site, n, shape, largest, count in zip(*columns, counts, strict=True)
    ]  # fmt: skip


def _lines(culprits: Sequence[_Culprit]) -> list[Line]:
    """Return one line per parameter, first the one that overflowed most often."""
    by_param: dict[str, list[_Culprit]] = defaultdict(list)
    for culprit in culprits:
        by_param[culprit.param].append(culprit)
    often = sorted(by_param.items(), key=lambda item: (-len({c.step for c in item[1]}), -(_worst(item[1]) or 0.0)))
    return [_line(param, seen) for param, seen in often]


def _line(param: str, seen: Sequence[_Culprit]) -> Line:
    steps = {culprit.step for culprit in seen}
    worst = max(seen, key=lambda culprit: culprit.largest)
    is_usable = 0.0 < worst.scale < math.inf
    return Line(
        param=wording.clean(param),
        n_overflows=len(steps),
        first_step=min(steps),
        last_step=max(steps),
        share=percent(_worst(seen)),
        largest=wording.number(worst.largest) if worst.largest else "" if _worst(seen) is None else "none was finite",
        unscaled=wording.number(worst.largest / worst.scale) if worst.largest and is_usable else "",
    )


def _worst(seen: Sequence[_Culprit]) -> float | None:
    return max((culprit.share for culprit in seen if culprit.share is not None), default=None)


def _summary(whose: str, steps: Sequence[int], scales: Mapping[int, float], skipped: set[int]) -> str:
    first, last = steps[0], steps[-1]
    low, high = min(steps, key=lambda step: scales[step]), max(steps, key=lambda step: scales[step])
    n_skipped = len(skipped.intersection(steps))
    said = [f"{whose}: {n_skipped:,} of {wording.count(len(steps), 'update')} skipped"]
    said += [f"scale {in_words(scales[first])} at step {first}, {in_words(scales[last])} at step {last}"]
    if scales[low] < min(scales[first], scales[last]):
        said.append(f"lowest {in_words(scales[low])} at step {low}")
    if scales[high] > max(scales[first], scales[last]):
        said.append(f"highest {in_words(scales[high])} at step {high}")
    return "; ".join(said)


def _chart(
    steps: Sequence[int], scales: Mapping[int, float], skipped: set[int], culprits: Sequence[_Culprit]
) -> dict[str, Any]:
    shown = _edges(steps, scales, skipped)
    named: dict[int, list[_Culprit]] = defaultdict(list)
    for culprit in culprits:
        named[culprit.step].append(culprit)
    kept = [step for step in shown if step in named][:MOST_NAMED_STEPS]
    return {
        "steps": shown,
        "scale": [scales[step] if 0 < scales[step] < math.inf else None for step in shown],
        "skipped": [step for step in shown if step in skipped],
        "culprits": {str(step): _at_step(named[step]) for step in kept},
    }


def _at_step(culprits: Sequence[_Culprit]) -> dict[str, Any]:
    worst = sorted(culprits, key=lambda culprit: (-(culprit.share or 0.0), culprit.param))[:MOST_CULPRITS]
    named = [
        [wording.clean(c.param, at_most=80), percent(c.share), wording.number(c.largest) if c.largest else ""]
        for c in worst
    ]
    return {"named": named, "n": len(culprits)}


def _edges(steps: Sequence[int], scales: Mapping[int, float], skipped: set[int]) -> list[int]:
    """Return steps at which the staircase turns or a step was skipped, and both ends; thinned evenly if many."""
    kept = [
        step
        for i, step in enumerate(steps)
        if i in (0, len(steps) - 1)
        or step in skipped
        or scales[step] != scales[steps[i - 1]]
        or scales[step] != scales[steps[i + 1]]
    ]
    stride = math.ceil(len(kept) / MOST_POINTS)
    return kept if stride == 1 else [*kept[:-1:stride], kept[-1]]
