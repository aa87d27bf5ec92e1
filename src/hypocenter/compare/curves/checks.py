"""The acceptance rules: each a named check with its limit and what was found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np

from hypocenter.compare.curves.align import Aligned
from hypocenter.compare.curves.comparison import Check, CheckStatus, Limits, Schedule, Spike
from hypocenter.compare.curves.curve import Steps, Values, is_number
from hypocenter.compare.curves.evidence import Evidence
from hypocenter.compare.curves.noise import ENOUGH, grows
from hypocenter.compare.curves.statistics import robust_spread, running_mean, running_median

_STAYS = 3  # steps in a row that are not finite: what no loss scaler's skipped step explains
_OUTSIDE = 0.05  # of all windows that may be beyond the floor of repeats
_LEAN = 3.9  # standard errors: one in ten thousand
_SMALL_SHARE = 0.1  # of the tolerance: a lean that nobody minds
_TYPICAL, _NEARLY_ALL = 50.0, 99.0  # percentiles
_WINDOW = 65  # points around a value
_BEFORE = 8  # points before a value that it must stand out from too: the first descent of a run is no spike
_NEAR = 1  # aligned points between spikes of both sides that are one
SHOWN = 20  # largest ones kept


def not_finite(found: Evidence) -> Check:
    """Check that the candidate's loss is finite wherever the baseline's is."""
    whole = found.whole
    bad = ~is_number(whole.candidate) & is_number(whole.baseline)
    broken = np.flatnonzero(bad)
    if not len(broken):
        return Check(name="finite", status="pass", limit=0, actual=0, text="the loss is finite wherever the other is")
    first = int(broken[0])
    for at in broken:
        if bad[at : at + _STAYS].all():
            first = int(at)
            stays = f"the candidate's loss is not finite from step {whole.steps[first]:,} on"
            return Check(
                name="finite", status="fail", limit=0, actual=len(broken), step=int(whole.steps[first]), text=stays
            )
    text = f"the candidate's loss is not finite at {len(broken)} step(s), first at {whole.steps[first]:,}"
    return Check(
        name="finite", status="cannot-tell", limit=0, actual=len(broken), step=int(whole.steps[first]), text=text
    )


def sustained(found: Evidence) -> Check:
    """Check that no stretch of the curve has a mean difference beyond the noise."""
    name = "sustained" if found.name == "loss" else "grad-norm"
    what = "the loss" if found.name == "loss" else "the grad norm"
    if found.apart is None:
        source = "the repeats' noise" if found.source == "repeats" else "the baseline's own unrest"
        text = f"{what} is nowhere apart for {found.lasting} logged steps beyond {source}"
        return Check(name=name, status="pass", limit=found.typical_floor, actual=_largest_mean(found), text=text)
    apart = found.apart
    steps = found.pair.steps
    to_end = apart.ends >= len(steps) - 1
    text = f"{what} is apart from step {steps[apart.begins]:,} {'on' if to_end else f'to {steps[apart.ends]:,}'}"
    return Check(
        name=name, status="fail", limit=apart.floor, actual=abs(apart.gap), step=int(steps[apart.begins]), text=text
    )


def inside_floor(found: Evidence) -> Check:
    """Check that nearly all windows are within what repeats of the baseline differ by."""
    if found.source != "repeats":
        text = "no repeats of the baseline were given: its own error is not known"
        return Check(name="noise-floor", status="skipped", text=text, decides=False)
    means = np.abs(_means(found))
    outside = float(np.mean(means > found.floor))
    text = f"{1 - outside:.1%} of the windows of {found.window} logged steps are within the baseline's own error"
    return Check(
        name="noise-floor", status="pass" if outside <= _OUTSIDE else "cannot-tell", limit=_OUTSIDE, actual=outside,
        text=text,
    )  # fmt: skip


def swings(found: Evidence, limits: Limits) -> Check:
    """Check that the difference swings around zero and does not lean to one side."""
    swing = found.swing
    text = (
        f"{swing.share_above:.0%} of the differences are above zero, {swing.n_crossings:,} crossings, "
        f"mean {swing.mean.value:+.2g} ± {swing.mean.error:.1g}"
    )
    mean = abs(swing.mean.value)
    leans = mean > swing.mean.beyond(limits.chance) and (abs(swing.lean) > _LEAN or mean > found.typical_floor)
    small = mean <= max(_SMALL_SHARE * float(found.tolerance.mean()), float(found.noise.least.mean()))
    status: CheckStatus = "pass"
    if not small and (leans or swing.n_effective < ENOUGH):
        status = "pass" if _repeats_lean(found) else "cannot-tell"
        text += ", as the repeats do" if status == "pass" else ""
    if not small and swing.n_effective < ENOUGH and status == "cannot-tell":
        text += f"; worth only {swing.n_effective:.0f} independent ones"
    return Check(name="around-zero", status=status, limit=_LEAN, actual=abs(swing.lean), text=text)


def below_limit(found: Evidence, limits: Limits) -> Check:
    """Check that 99 % of the steps differ by at most the limit."""
    actual = found.percentile(_NEARLY_ALL)
    worst = int(np.argmax(np.abs(found.difference)))
    text = f"99 % of the steps differ by at most {actual:.3g}; the most is {found.difference[worst]:+.3g}"
    fine = actual <= limits.loss
    if not fine and found.source == "repeats":
        theirs = max(float(np.nanpercentile(np.abs(one), _NEARLY_ALL)) for one in found.noise.samples)
        text += f" (the baseline's own repeats: {theirs:.3g})"
    return Check(
        name="loss-limit", status="pass" if fine else "cannot-tell", limit=limits.loss, actual=actual,
        step=int(found.pair.steps[worst]), text=text, decides=found.source != "repeats",
    )  # fmt: skip


def late(found: Evidence, limits: Limits) -> Check:
    """Check that in the last third the curves are not apart, and that their difference does not grow."""
    late = found.late
    gap = abs(late.gap)
    apart = gap > found.late_floor
    if found.source != "repeats":
        apart = apart and gap > float(found.sieve[-len(found.sieve) // 3 :].mean())
    growing = grows(late, limits.chance)
    text = f"mean of the last third {late.gap:+.3g} ± {late.gap_error:.1g}"
    if growing:
        text += f", growing by {late.slope:+.3g} per 1,000 steps"
    return Check(
        name="late-drift", status="fail" if apart else "pass", limit=found.late_floor, actual=gap,
        step=int(found.pair.steps[-len(found.pair.steps) // 3]), text=text,
    )  # fmt: skip


def at_the_end(found: Evidence, limits: Limits) -> Check:
    """Check that in the last tenth the difference is less than the given share of the loss (one per cent)."""
    share = found.late.end_share
    fine = share < limits.end_share
    text = f"mean of the last tenth {found.late.end_gap:+.3g}, {share:.2%} of the loss"
    inside = found.source == "repeats" and abs(found.late.end_gap) <= _end_floor(found)
    return Check(
        name="end", status="pass" if fine else "cannot-tell", limit=limits.end_share, actual=share, text=text,
        decides=not inside,
    )  # fmt: skip


def frozen(found: Evidence, limit: float, least_steps: int) -> Check:
    """Check, at learning rate 0, how far forward (loss) or backward (grad norm) alone differ."""
    values = np.abs(found.difference)
    if found.name == "grad_norm":
        values = np.abs(np.exp(found.pair.candidate) - np.exp(found.pair.baseline))
    typical, worst = float(np.percentile(values, _TYPICAL)), int(np.argmax(values))
    most = float(np.percentile(values, _NEARLY_ALL))
    status: CheckStatus = "pass" if most <= limit else "fail" if typical > limit else "cannot-tell"
    text = f"at learning rate 0, half of the steps differ by at most {typical:.3g}, 99 % by {most:.3g}"
    if len(values) < least_steps:
        text += f"; {len(values):,} steps of the {least_steps:,} that the limit is meant for"
    return Check(
        name=f"frozen-{found.name.replace('_', '-')}", status=status, limit=limit, actual=most,
        step=int(found.pair.steps[worst]), text=text,
    )  # fmt: skip


def schedule(found: Schedule, same_kind: bool) -> Check:
    """Check that the learning rates are the same."""
    shift = found.values.get("steps", 0.0)
    if found.kind == "not-compared":
        return Check(name="learning-rate", status="skipped", text=found.text, decides=False)
    if found.kind == "shifted" and abs(shift) == 1 and not same_kind:
        text = found.text + ": the two kinds of log print the rate before and after the update"
        return Check(name="learning-rate", status="pass", text=text, limit=1, actual=abs(shift))
    return Check(
        name="learning-rate", status="pass" if found.kind == "same" else "fail", text=found.text, step=found.step
    )


def length(n_steps: int, limits: Limits) -> Check:
    """Check that the runs are as long as the loss limit is meant for."""
    enough = n_steps >= limits.long_steps
    text = f"{n_steps:,} steps; the loss limit is meant over {limits.long_steps:,}"
    return Check(
        name="length", status="pass" if enough else "skipped", limit=limits.long_steps, actual=n_steps, text=text,
        decides=False,
    )  # fmt: skip


def of_loss(found: Evidence, limits: Limits) -> Iterator[Check]:
    """Apply all checks of the loss of a run that learns."""
    yield not_finite(found)
    yield sustained(found)
    yield inside_floor(found)
    yield swings(found, limits)
    yield below_limit(found, limits)
    yield late(found, limits)
    yield at_the_end(found, limits)


def _means(found: Evidence) -> Values:
    return running_mean(found.difference, found.window)


def _largest_mean(found: Evidence) -> float:
    return float(np.abs(_means(found)).max())


def _repeats_lean(found: Evidence) -> bool:
    if found.source != "repeats":
        return False
    own = max(abs(float(np.nanmean(one))) for one in found.noise.samples)
    return abs(found.swing.mean.value) <= 2 * own


def _end_floor(found: Evidence) -> float:
    return float(found.floor[-max(len(found.floor) // 10, 1) :].mean())


def spikes_of(steps: Steps, values: Values, limit: float) -> list[Spike]:
    """Find points more than `limit` robust standard deviations above the running median; of neighbours the highest."""
    if len(values) < 16:
        return []
    usual = running_median(values, min(_WINDOW, len(values) // 2 * 2 - 1))
    excess = values - usual
    spread = np.maximum(_local_spread(excess), 1e-12 + 1e-6 * np.abs(usual))
    size = np.minimum(excess, values - _level_before(values)) / spread
    found: list[Spike] = []
    for at in np.flatnonzero(size > limit):
        spike = Spike(
            side="candidate", step=int(steps[at]), value=float(values[at]), usual=float(usual[at]), size=float(size[at])
        )
        if found and steps[at] - found[-1].step <= 5 * max(1, int(np.median(np.diff(steps)))):
            if spike.value > found[-1].value:
                found[-1] = spike
            continue
        found.append(spike)
    return found


def _level_before(values: Values) -> Values:
    """Return for each value the median of the few values before it; for the first ones the values themselves."""
    out = values.copy()
    windows = np.lib.stride_tricks.sliding_window_view(values[:-1], _BEFORE)
    out[_BEFORE:] = np.median(windows, axis=1)
    return out


def _local_spread(excess: Values) -> Values:
    """Return the robust spread around each value, by eighths of the curve: a run's unrest changes as it goes on."""
    n = len(excess)
    edges = np.linspace(0, n, min(8, max(1, n // 32)) + 1).astype(int)
    overall = robust_spread(excess)
    out = np.full(n, overall)
    for low, high in pairwise(edges):
        out[low:high] = max(robust_spread(excess[low:high]), overall / 4)
    return out


def spikes_of_both(pair: Aligned, limit: float, digests: dict[int, str], others: dict[int, str]) -> list[Spike]:
    """Find spikes of either side, largest first, each with the digest of its batch; a spike of both is one entry.

    Args:
        digests: of the candidate's batches, by step.
        others: of the baseline's.
    """
    mine = spikes_of(pair.steps, pair.candidate, limit)
    theirs = spikes_of(pair.steps, pair.baseline, limit)
    index = {int(step): i for i, step in enumerate(pair.steps)}
    found: list[Spike] = []
    for spike in mine:
        twin = next((t for t in theirs if abs(index[t.step] - index[spike.step]) <= _NEAR), None)
        if twin is not None:
            theirs.remove(twin)
        side = "candidate" if twin is None else "both"
        found.append(replace(spike, side=side, digest=digests.get(spike.step)))
    found += [replace(spike, side="baseline", digest=others.get(spike.step)) for spike in theirs]
    return sorted(found, key=lambda spike: -spike.size)
