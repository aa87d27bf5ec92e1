"""Two curves and repeats of the first in, one CurveComparison out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hypocenter.compare.curves import checks as rules
from hypocenter.compare.curves.align import Aligned, align, better_lag, origin
from hypocenter.compare.curves.checks import SHOWN, spikes_of_both
from hypocenter.compare.curves.comparison import (
    Check,
    CurveComparison,
    CurveSide,
    CurveVerdict,
    Departure,
    Limits,
    Schedule,
    Track,
)
from hypocenter.compare.curves.curve import Curve, Series, Steps, Values
from hypocenter.compare.curves.evidence import FEWEST, Evidence, gather
from hypocenter.compare.curves.noise import grows
from hypocenter.compare.curves.statistics import change_point
from hypocenter.in_words import counted
from hypocenter.nouns import Confidence

_FACTORS_MOST = 4  # decimals of a grad norm's factor
_STEADY = 0.02  # spread of the logarithm of a factor that is one
POINTS = 240  # wider than a sparkline and a small chart
_FITS = 0.98  # of the steps that an explanation must make equal
_SHIFTS = 2_000  # steps to either side that are tried
_FEWEST = 5
_PROOF = frozenset(("finite", "learning-rate"))  # facts, where the others are statistics


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
    """Return the curve with steps counted from 0, also for kinds of log that do not say from where they count."""
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
    """Return a gap that only the whole last third tells from noise; its step is the best split of the difference."""
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
    """Return whether two batches differ, by digests `names-values`; False when they are of other inputs."""
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
    """Yield the texts of the checks that failed, or else of those that cannot tell, unless the sentence says them."""
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
    """Return baseline, candidate, difference and floor as means over at most 240 spans of steps, for a chart."""
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


def compare_schedules(baseline: Series, candidate: Series, tolerance: float, *, offset: int = 0) -> Schedule:
    """Compare learning rates step by step; where they differ, say in which of the usual ways.

    Args:
        tolerance: relative to the baseline's largest rate at that step; logs round.
    """
    pair = align(baseline, candidate, offset=offset).finite()
    if len(pair.steps) < _FEWEST:
        return Schedule(kind="not-compared", text="there are fewer than five steps with a learning rate on both sides")
    differs = ~_equal(pair.baseline, pair.candidate, tolerance)
    if not differs.any():
        return Schedule(kind="same", text=f"the learning rates agree at all {len(pair.steps):,} steps")
    first = int(pair.steps[int(np.argmax(differs))])
    for explain in (_shifted, _rate_factor, _warm_up, _smallest):
        found = explain(baseline, candidate, pair, tolerance, offset)
        if found is not None:
            kind, text, values = found
            return Schedule(kind=kind, text=text, step=first, values=values)  # type: ignore[arg-type]
    at = int(np.argmax(differs))
    text = (
        f"the learning rates differ at {int(differs.sum()):,} of {len(pair.steps):,} steps, first at step {first}: "
        f"{pair.baseline[at]:.6g} against {pair.candidate[at]:.6g}"
    )
    return Schedule(kind="shape", text=text, step=first)


_Found = tuple[str, str, dict[str, float]] | None


def _equal(left: Values, right: Values, tolerance: float) -> npt.NDArray[np.bool_]:
    top = max(float(np.max(np.abs(left))), float(np.max(np.abs(right)))) if len(left) else 0.0
    return np.abs(left - right) <= tolerance * np.maximum(np.abs(left), np.abs(right)) + 1e-6 * top


def _shifted(baseline: Series, candidate: Series, pair: Aligned, tolerance: float, offset: int) -> _Found:
    if np.all(_equal(pair.baseline, np.full_like(pair.baseline, pair.baseline[0]), tolerance)):
        return None  # a constant is shifted by anything
    interval = max(baseline.interval, candidate.interval)
    most = min(_SHIFTS, len(pair.steps) // 4)
    for n in sorted(range(-most, most + 1), key=abs):
        if n == 0:
            continue
        moved = align(baseline, candidate, offset=offset - n * interval).finite()
        if len(moved.steps) < max(_FEWEST, len(pair.steps) // 2):
            continue
        if _equal(moved.baseline, moved.candidate, tolerance).mean() >= _FITS and _moves(moved.baseline):
            shift = n * interval
            side = "later" if shift > 0 else "earlier"
            text = f"the candidate's learning rate is the baseline's {counted(abs(shift), 'step')} {side}"
            return "shifted", text, {"steps": float(shift)}
    return None


def _moves(values: Values) -> bool:
    return float(np.ptp(values)) > 0.01 * float(np.max(np.abs(values)))


def _rate_factor(baseline: Series, candidate: Series, pair: Aligned, tolerance: float, offset: int) -> _Found:
    used = (pair.baseline != 0) & (pair.candidate != 0)
    if used.sum() < _FEWEST:
        return None
    ratio = float(np.median(pair.candidate[used] / pair.baseline[used]))
    if abs(ratio - 1) <= tolerance or _equal(pair.baseline * ratio, pair.candidate, 2 * tolerance).mean() < _FITS:
        return None
    return "factor", f"the candidate's learning rate is {ratio:.6g} times the baseline's", {"factor": ratio}


def _warm_up(baseline: Series, candidate: Series, pair: Aligned, tolerance: float, offset: int) -> _Found:
    left, right = (_warm_steps(pair.steps, values, tolerance) for values in (pair.baseline, pair.candidate))
    tops = float(pair.baseline.max()), float(pair.candidate.max())
    if not _equal(np.array(tops[:1]), np.array(tops[1:]), tolerance).all():
        text = f"the largest learning rate is {tops[0]:.6g} in the baseline and {tops[1]:.6g} in the candidate"
        return "peak", text, {"baseline": tops[0], "candidate": tops[1]}
    if left == right:
        return None
    text = f"warm-up ends at step {left:,} in the baseline and at step {right:,} in the candidate"
    return "warm-up", text, {"baseline": float(left), "candidate": float(right)}


def _warm_steps(steps: Steps, values: Values, tolerance: float) -> int:
    return int(steps[int(np.argmax(values >= values.max() * (1 - tolerance)))])


def _smallest(baseline: Series, candidate: Series, pair: Aligned, tolerance: float, offset: int) -> _Found:
    ends = float(pair.baseline[-1]), float(pair.candidate[-1])
    falls = all(v[-1] <= v.max() * 0.9 for v in (pair.baseline, pair.candidate))
    if not falls or _equal(np.array(ends[:1]), np.array(ends[1:]), tolerance).all():
        return None
    text = f"the learning rate falls to {ends[0]:.6g} in the baseline and to {ends[1]:.6g} in the candidate"
    return "min-lr", text, {"baseline": ends[0], "candidate": ends[1]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The verdict, how sure it is, and its sentence."""

    status: CurveVerdict
    confidence: Confidence
    sentence: str


def answer(found: Evidence, checks: Sequence[Check], *, same_kind: bool) -> Answer:
    """Say departed if an accusing check failed, accepted if all that decide passed, else that it cannot be told.

    A grad norm alone that is apart accuses nobody when two kinds of log were compared, which may print it before and
    after clipping or scaling, or when the noise was not measured.
    """
    failed = [check for check in checks if check.status == "fail" and check.decides]
    known = found.source == "repeats"
    accusing = [c for c in failed if c.name not in ("grad-norm", "frozen-grad-norm") or (known and same_kind)]
    if accusing:
        worst = next((c for c in accusing if c.name in _PROOF), accusing[0])
        confidence: Confidence = "proven" if worst.name in _PROOF else "likely" if known else "possible"
        return Answer(status="departed", confidence=confidence, sentence=_departed(found, checks, worst))
    open_ = [check for check in checks if check.status in ("cannot-tell", "fail") and check.decides]
    if open_:
        return Answer(status="cannot-tell", confidence="possible", sentence=_open(found, open_))
    return Answer(status="accepted", confidence="likely" if known else "possible", sentence=_accepted(found))


def _departed(found: Evidence, checks: Sequence[Check], worst: Check) -> str:
    if worst.name == "learning-rate":
        loss_is_fine = all(c.status == "pass" for c in checks if c.name in ("sustained", "late-drift", "finite"))
        beside = "; the losses agree so far" if loss_is_fine else "; the losses are apart too"
        at = f" at step {worst.step:,}" if worst.step is not None else ""
        return f"departed{at}: {worst.text}{beside}"
    if worst.name == "sustained" and found.apart is not None:
        return f"departed at step {_step(found, found.apart.begins)}: {_gap(found, found.apart.gap)}{_ends(found)}" + (
            f" ({_floor(found, found.apart.floor)})"
        )
    if worst.name == "late-drift":
        at = min(change_point(found.difference), len(found.difference) - 1)
        where = f"departed about step {_step(found, at)}: over the last third "
        return where + f"{_gap(found, found.late.gap)} ({_floor(found, found.late_floor)})"
    at = f" at step {worst.step:,}" if worst.step is not None else ""
    return f"departed{at}: {worst.text}"


def _open(found: Evidence, checks: Sequence[Check]) -> str:
    unmeasured = (
        "" if found.source == "repeats" else "; no repeat of the baseline was given that says whether it is noise"
    )
    if any(check.name == "end" for check in checks):
        late = found.late
        where = "at the end the candidate's loss is"
        side = "above" if late.end_gap > 0 else "below"
        return f"cannot tell: {where} {abs(late.end_gap):.3g} ({late.end_share:.1%}) {side} the baseline's{unmeasured}"
    return f"cannot tell: {checks[0].text}{unmeasured}"


def _step(found: Evidence, at: int) -> str:
    return f"{found.pair.steps[at]:,}"


def _gap(found: Evidence, gap: float) -> str:
    return f"the candidate's loss is {abs(gap):.3g} {'above' if gap > 0 else 'below'} the baseline's"


def _ends(found: Evidence) -> str:
    apart = found.apart
    if apart is None or apart.ends >= len(found.pair.steps) - 1:
        return ", to the end" + (", and growing" if grows(found.late, 1e-3) else "")
    return f", until step {_step(found, apart.ends)}"


def _floor(found: Evidence, floor: float) -> str:
    if found.source == "repeats":
        return f"noise floor {floor:.2g}, measured on {counted(len(found.noise.samples), 'repeat')}"
    return f"the baseline's own unrest explains {floor:.2g}; no repeat was given"


def _accepted(found: Evidence) -> str:
    n, most = len(found.pair.steps), found.percentile(99)
    if not found.difference.any():
        return f"accepted: the losses are equal at all {n:,} steps"
    start = f"accepted: at {n:,} steps the losses differ by at most {most:.2g} (99 % of the steps), around zero"
    if found.source == "repeats":
        within = f"within the noise of {counted(len(found.noise.samples), 'repeat')} of the baseline"
        least = float(np.median(found.noise.least))
        mostly_rounding = least > found.typical_floor / 2
        return f"{start}, {within}" + (f" and {least:.2g} of rounding" if mostly_rounding else "")
    return f"{start}; no repeat of the baseline was given to measure its own error"


def next_steps(found: Evidence, checks: Sequence[Check], other_batch: int | None, status: str) -> Iterator[str]:
    """Yield what the person should do now, most useful first."""
    by_name = {check.name: check for check in checks}
    if other_batch is not None:
        yield f"give both runs the same batches in the same order: they differ from step {other_batch:,} on"
    if by_name["learning-rate"].status == "fail":
        yield "make the learning-rate schedules equal first: total steps, warm-up steps, smallest rate"
    broken = by_name.get("finite")
    if broken is not None and broken.status == "fail":
        yield f"record the candidate around step {broken.step}: hypocenter run --level sentinel … names the op"
    if status == "departed" and found.apart is not None:
        late = found.apart.begins > len(found.pair.steps) // 2
        if late:
            yield "good at first and apart later: compare optimizer, weight decay (on which weights), betas, precision"
        else:
            yield "compare the first two steps module by module: hypocenter run --level modules --sketch, then diff"
    if found.source != "repeats" and status != "accepted":
        yield "run the baseline twice more without determinism and give those runs with --noise: its own error decides"
    if status == "accepted":
        yield "evaluate a downstream task: the last word on accuracy"
