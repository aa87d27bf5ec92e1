"""How two learning-rate curves differ: shifted, by a factor, in warm-up, in the smallest rate."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hypocenter.compare.curves.align import Aligned, align
from hypocenter.compare.curves.comparison import Schedule
from hypocenter.compare.curves.curve import Series, Steps, Values

_FITS = 0.98  # of the steps that an explanation must make equal
_SHIFTS = 2_000  # steps to either side that are tried
_FEWEST = 5


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
    for explain in (_shifted, _factor, _warm_up, _smallest):
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
            text = f"the candidate's learning rate is the baseline's {_steps(shift)} {side}"
            return "shifted", text, {"steps": float(shift)}
    return None


def _moves(values: Values) -> bool:
    return float(np.ptp(values)) > 0.01 * float(np.max(np.abs(values)))


def _steps(n: int) -> str:
    return "1 step" if abs(n) == 1 else f"{abs(n):,} steps"


def _factor(baseline: Series, candidate: Series, pair: Aligned, tolerance: float, offset: int) -> _Found:
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
