"""Stage 6: how far the baseline is from itself: repeated, as far off as good runs may be."""

from __future__ import annotations

from hypocenter.align.alignment import StageResult, result
from hypocenter.align.context import Context
from hypocenter.align.repeats import repeats
from hypocenter.align.tracks import track_figures
from hypocenter.compare.curves.compare import compare_curves
from hypocenter.compare.curves.evidence import FEWEST


def judge(context: Context) -> StageResult:
    """Measure the noise of repeats over many steps; "cannot-tell" where they are equal to the bit, or too short."""
    noise = repeats(context, "repeat", context.plan.stages.repeats)
    baseline = context.curve("baseline", "long")
    found = [
        compare_curves(baseline, one, [other for other in noise.curves if other is not one]) for one in noise.curves
    ]
    figures = {"curves": [track_figures(one, f"repeat {n}") for n, one in enumerate(found, 1)], "repeats": noise.how}
    most = [max((abs(d) for d in one.track.difference if d is not None), default=0.0) for one in found]
    n = min(one.n_aligned for one in found)
    n_runs = len(found)
    if n < FEWEST:
        return result(6, "cannot-tell", f"{n} steps are in the baseline and its repeats; {FEWEST} are needed",
                      next=("long_steps = 1000 in [stages]",), figures=figures)  # fmt: skip
    if not any(most):
        return result(6, "cannot-tell", f"{n_runs} repeats of the baseline are equal to it: they measure nothing",
                      figures=figures)  # fmt: skip
    sizes = ", ".join(f"{size:.2g}" for size in most)
    return result(
        6, "passed", f"over {n} steps the loss of {n_runs} repeats of the baseline is apart from it by at most {sizes}",
        why=(f"the repeats differ {noise.how}",), figures=figures,
    )  # fmt: skip
