"""Two curves and repeats of the first in, one CurveComparison out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from hypocenter.compare.curves import checks as rules
from hypocenter.compare.curves.align import align, better_lag, origin
from hypocenter.compare.curves.checks import SHOWN, spikes_of_both
from hypocenter.compare.curves.comparison import (
    Check,
    CurveComparison,
    CurveSide,
    Departure,
    Limits,
    Schedule,
    Track,
)
from hypocenter.compare.curves.curve import Curve, Values
from hypocenter.compare.curves.evidence import FEWEST, Evidence, gather
from hypocenter.compare.curves.schedule import compare_schedules
from hypocenter.compare.curves.statistics import change_point
from hypocenter.compare.curves.verdict import answer, next_steps

_FACTORS_MOST = 4  # decimals of a grad norm's factor
_STEADY = 0.02  # spread of the logarithm of a factor that is one
POINTS = 240  # wider than a sparkline and a small chart


def compare_curves(
    baseline: Curve,
    candidate: Curve,
    noise: Sequence[Curve] = (),
    *,
    limits: Limits | None = None,
    offset: int | None = None,
) -> CurveComparison:
    """Say whether the candidate's training follows the baseline's within the baseline's own error.

    Args:
        baseline: the run that is right.
        candidate: the run in question.
        noise: repeats of the baseline (without determinism), from which its own error is measured.
        limits: what counts as a difference.
        offset: added to the candidate's steps; found out when not given.
    """
    limits = limits or Limits()
    baseline, candidate = _from_zero(baseline), _from_zero(candidate)
    repeats = [_from_zero(curve) for curve in noise]
    shift, notes = _shift(baseline, candidate, offset)
    loss = gather("loss", baseline, candidate, repeats, limits, shift)
    if loss is None:
        return _nothing(baseline, candidate, repeats, shift, notes)
    return _compared(loss, baseline, candidate, repeats, limits, shift, notes)


def _compared(
    loss: Evidence, baseline: Curve, candidate: Curve, repeats: list[Curve], limits: Limits, shift: int,
    notes: list[str],
) -> CurveComparison:  # fmt: skip
    same_kind = baseline.kind == candidate.kind
    norm = gather("grad_norm", baseline, candidate, repeats, limits, shift)
    schedule = _schedule(baseline, candidate, limits, shift)
    found = list(_checks(loss, norm, schedule, limits, frozen=_is_frozen(baseline, candidate), same_kind=same_kind))
    told = answer(loss, found, same_kind=same_kind)
    other_batch = _first_other_batch(baseline, candidate, shift)
    notes += [*loss.pair.notes, *_notes(loss, norm, baseline, candidate, repeats, other_batch, shift)]
    return CurveComparison(
        status=told.status, confidence=told.confidence, sentence=told.sentence, baseline=_side(baseline),
        candidate=_side(candidate), noise=tuple(map(_side, repeats)), floor_source=loss.source,
        n_aligned=len(loss.whole.steps), offset=shift, departure=_departure(loss, found, candidate, shift),
        late=loss.late, schedule=schedule, checks=tuple(found),
        spikes=tuple(
            spikes_of_both(loss.pair, limits.spike, _moved(candidate.digests, shift), baseline.digests)[:SHOWN]
        ),
        first_other_batch=other_batch, why=tuple(_why(found, told.sentence)),
        next=tuple(next_steps(loss, found, other_batch, told.status)), notes=tuple(notes), track=track_of(loss),
    )  # fmt: skip


def _checks(
    loss: Evidence, norm: Evidence | None, schedule: Schedule, limits: Limits, *, frozen: bool, same_kind: bool
) -> Iterator[Check]:
    if frozen:
        yield rules.not_finite(loss)
        yield rules.frozen(loss, limits.frozen_loss, limits.frozen_steps)
        if norm is not None:
            yield rules.frozen(norm, limits.frozen_grad_norm, limits.frozen_steps)
    else:
        yield from rules.of_loss(loss, limits)
        if norm is not None:
            yield rules.sustained(norm)
    yield rules.schedule(schedule, same_kind)
    yield rules.length(int(loss.pair.steps[-1] - loss.pair.steps[0]) + 1, limits)


def _from_zero(curve: Curve) -> Curve:
    """The curve with steps counted from 0, also of kinds of log that do not say from where they count."""
    shift = origin(curve)
    if not shift:
        return curve
    moved = {name: replace(series, steps=series.steps - shift) for name, series in curve.series.items()}
    return replace(curve, series=moved)


def _shift(baseline: Curve, candidate: Curve, offset: int | None) -> tuple[int, list[str]]:
    left, right = baseline.series.get("loss"), candidate.series.get("loss")
    if left is None or right is None:
        return offset or 0, []
    lag = better_lag(left, right, offset or 0)
    if lag is None:
        return offset or 0, []
    fits = f"the candidate's loss fits the baseline's at least twice as well when {abs(lag)} step(s) are "
    fits += "added to its steps" if lag > 0 else "taken off its steps"
    if offset is None and None in (baseline.counts_from, candidate.counts_from):
        return lag, [f"{fits}: done, as nobody says from where {_unsaid(baseline, candidate)} counts"]
    return offset or 0, [f"{fits}: is it fed the batches of other steps? (--offset {(offset or 0) + lag} compares so)"]


def _unsaid(baseline: Curve, candidate: Curve) -> str:
    return " and ".join(dict.fromkeys(c.kind for c in (baseline, candidate) if c.counts_from is None))


def _schedule(baseline: Curve, candidate: Curve, limits: Limits, shift: int) -> Schedule:
    left, right = baseline.series.get("lr"), candidate.series.get("lr")
    if left is None or right is None:
        return Schedule(kind="not-compared", text="not both logs have a learning rate")
    return compare_schedules(left, right, limits.lr_share, offset=shift)


def _is_frozen(baseline: Curve, candidate: Curve) -> bool:
    rates = [curve.series.get("lr") for curve in (baseline, candidate)]
    return all(rate is not None and len(rate.values) > 0 and not np.any(rate.values) for rate in rates)


def _departure(loss: Evidence, found: list[Check], candidate: Curve, shift: int) -> Departure | None:
    apart, steps = loss.apart, loss.pair.steps
    if apart is None:
        return _late_departure(loss, found)
    step = int(steps[apart.begins])
    return Departure(
        series="loss", step=step, seen_step=int(steps[apart.seen]),
        until=None if apart.ends >= len(steps) - 1 else int(steps[apart.ends]), gap=apart.gap, floor=apart.floor,
        digest=_moved(candidate.digests, shift).get(step),
    )  # fmt: skip


def _late_departure(loss: Evidence, found: list[Check]) -> Departure | None:
    """Of a gap that only the whole last third tells from noise: its step is the best split of the difference."""
    if not any(check.name == "late-drift" and check.status == "fail" for check in found):
        return None
    steps, at = loss.pair.steps, min(change_point(loss.difference), len(loss.difference) - 1)
    return Departure(
        series="loss", step=int(steps[at]), seen_step=int(steps[-1]), until=None, gap=loss.late.gap,
        floor=loss.late_floor,
    )  # fmt: skip


def _moved(digests: dict[int, str], shift: int) -> dict[int, str]:
    return {step + shift: digest for step, digest in digests.items()} if shift else digests


def _first_other_batch(baseline: Curve, candidate: Curve, shift: int) -> int | None:
    theirs = _moved(candidate.digests, shift)
    return next((s for s in sorted(baseline.digests) if s in theirs and _differ(theirs[s], baseline.digests[s])), None)


def _differ(left: str, right: str) -> bool:
    """Whether two batches differ, by digests `names-values`; of other inputs nothing can be said."""
    return left != right and left.partition("-")[0] == right.partition("-")[0]


def _notes(
    loss: Evidence, norm: Evidence | None, baseline: Curve, candidate: Curve, repeats: list[Curve],
    other_batch: int | None, shift: int,
) -> Iterator[str]:  # fmt: skip
    if other_batch is not None:
        yield f"the batches differ from step {other_batch:,} on: the runs do not see the same data there"
    elif baseline.digests and candidate.digests:
        yield "the batches are the same, bit by bit, at all steps where both recorded them"
    if repeats and loss.source != "repeats":
        yield "the repeats are identical to the baseline, or too short: they say nothing about its own error"
    if norm is not None and (factor := _factor(norm)) is not None:
        yield f"the candidate's grad norm is {factor:.4g} times the baseline's at all steps"
    yield from _of_scales(baseline, candidate, shift)
    left, right = (curve.series["loss"].steps for curve in (baseline, candidate))
    missing = len(left) - len(loss.whole.steps), len(right) - len(loss.whole.steps)
    same_interval = baseline.series["loss"].interval == candidate.series["loss"].interval
    for side, n in zip(("candidate", "baseline"), missing, strict=True):
        if n > 0 and same_interval:
            yield f"{n:,} steps have no partner in the {side}"


def _factor(norm: Evidence) -> float | None:
    middle = float(np.median(norm.difference))
    spread = float(np.median(np.abs(norm.difference - middle)))
    return round(float(np.exp(middle)), _FACTORS_MOST) if abs(middle) > 0.05 and spread < _STEADY else None


def _of_scales(baseline: Curve, candidate: Curve, shift: int) -> Iterator[str]:
    left, right = baseline.series.get("loss_scale"), candidate.series.get("loss_scale")
    if left is None or right is None:
        return
    pair = align(left, right, offset=shift).finite()
    differs = np.flatnonzero(pair.baseline != pair.candidate)
    if len(differs):
        at = int(differs[0])
        yield (
            f"the loss scales differ at {len(differs):,} of {len(pair.steps):,} steps, first at step "
            f"{pair.steps[at]:,}: {pair.baseline[at]:g} against {pair.candidate[at]:g}"
        )


def _why(found: list[Check], sentence: str) -> Iterator[str]:
    """What failed; with no failure, what could not be told. The sentence itself is not said again."""
    failed = [check for check in found if check.status == "fail"]
    for check in failed or [check for check in found if check.status == "cannot-tell" and check.decides]:
        if check.text not in sentence:
            yield check.text


def _side(curve: Curve) -> CurveSide:
    loss = curve.series.get("loss")
    n = len(loss.steps) if loss is not None else 0
    return CurveSide(
        source=curve.source, kind=curve.kind, n_points=n, problems=curve.problems,
        first_step=int(loss.steps[0]) if loss is not None and n else None,
        last_step=int(loss.steps[-1]) if loss is not None and n else None,
        interval=loss.interval if loss is not None else 1,
    )  # fmt: skip


def _nothing(baseline: Curve, candidate: Curve, repeats: list[Curve], shift: int, notes: list[str]) -> CurveComparison:
    without = [side for side, curve in (("baseline", baseline), ("candidate", candidate)) if "loss" not in curve.series]
    n = 0
    if not without:
        n = len(align(baseline.series["loss"], candidate.series["loss"], offset=shift).finite().steps)
    reason = f"no loss in the {' and the '.join(without)}" if without else f"only {n} steps have a loss on both sides"
    names = {side: sorted(curve.series) for side, curve in (("baseline", baseline), ("candidate", candidate))}
    why = [f"the {side} has: {', '.join(names[side][:12])}" for side in without]
    return CurveComparison(
        sentence=f"cannot tell: {reason}" + ("" if without else f", {FEWEST} are needed"), baseline=_side(baseline),
        candidate=_side(candidate), noise=tuple(map(_side, repeats)), offset=shift, n_aligned=n, why=tuple(why),
        notes=tuple(notes),
    )  # fmt: skip


def track_of(found: Evidence) -> Track:
    """Baseline, candidate, difference and floor over at most 240 spans of steps."""
    pair, n = found.pair, len(found.pair.steps)
    edges = np.unique(np.linspace(0, n, min(n, POINTS) + 1).astype(int))
    floor = np.concatenate((np.full(n - len(found.floor), found.floor[0]), found.floor))
    return Track(
        steps=tuple(int(pair.steps[stop - 1]) for stop in edges[1:]), baseline=_means(pair.baseline, edges),
        candidate=_means(pair.candidate, edges), difference=_means(found.difference, edges),
        floor=_means(floor, edges),
    )  # fmt: skip


def _means(values: Values, edges: np.ndarray) -> tuple[float, ...]:
    total = np.concatenate(([0.0], np.cumsum(values)))
    return tuple(float(mean) for mean in (total[edges[1:]] - total[edges[:-1]]) / np.diff(edges))
