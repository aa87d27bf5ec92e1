"""Stage 3: the local norm of each parameter's gradient in the first step, and with it the backward pass."""

from __future__ import annotations

from dataclasses import replace

from hypocenter.align.alignment import StageResult
from hypocenter.align.context import Context
from hypocenter.align.formats import formats_apart
from hypocenter.align.local_norms import LocalNorm, local_norms
from hypocenter.align.spots import is_backward
from hypocenter.align.verdicts import named, of_comparison, result

_FEWEST = 3  # parameters that make a common factor one
_SAME = 1e-2  # relative: how far factors may be apart that are one
_SHOWN = 3  # parameters whose numbers are given


def judge(context: Context) -> StageResult:
    """Failed where a parameter's gradient leaves the baseline's by more than its measured noise."""
    norms = local_norms(context)
    if not norms:
        return result(3, "cannot-tell", "no gradient of a parameter was recorded on both sides")
    figures: dict[str, object] = {"local_norms": [one.plain() for one in norms]}
    apart = [one for one in norms if one.verdict == "differs"]
    found = context.compare(is_backward, 0, name="backward")
    if not apart:
        doubtful = [one for one in norms if one.verdict == "cannot-tell"]
        worst = max(norms, key=lambda one: one.times)
        words = f"the local norms of {len(norms)} parameters agree; the farthest, of {worst.site}, is {worst.numbers()}"
        if doubtful:
            words = f"nobody can tell of {len(doubtful)} of {len(norms)} local norms: {named(d.site for d in doubtful)}"
            return result(3, "cannot-tell", words, figures=figures, why=tuple(found.notes))
        return result(3, "passed", words, figures=figures)
    return _failed(context, norms, apart, figures)


def _shared_factor(norms: list[LocalNorm], apart: list[LocalNorm]) -> float | None:
    """By what all gradients are larger, if it is one number."""
    if len(apart) < len(norms) or len(norms) < _FEWEST or not all(one.baseline for one in norms):
        return None
    factors = sorted(one.candidate / one.baseline for one in norms)
    middle = factors[len(factors) // 2]
    return middle if factors[0] > 0 and factors[-1] - factors[0] < _SAME * middle else None


def _failed(
    context: Context, norms: list[LocalNorm], apart: list[LocalNorm], figures: dict[str, object]
) -> StageResult:
    found = context.compare(is_backward, 0, name="backward")
    told = of_comparison(3, found)
    worst = max(apart, key=lambda one: one.times)
    names = {one.site for one in apart}
    site = told.site if told.site is not None and len(apart) > 1 else worst.site
    shown = sorted(apart, key=lambda one: -one.times)[:_SHOWN]
    words = (
        f"the gradient of {worst.site} is not the baseline's: local norm {worst.baseline:.4g} and "
        f"{worst.candidate:.4g}, {worst.numbers()}"
    )
    why: list[str] = []
    if len(apart) > 1:
        words = (
            f"{len(apart)} of {len(norms)} gradients are not the baseline's: "
            f"{named(one.site for one in shown)}; the farthest {worst.numbers()}"
        )
        why = [f"{one.site}: local norm {one.baseline:.4g} and {one.candidate:.4g}, {one.numbers()}" for one in shown]
    shared = _shared_factor(norms, apart)
    if shared is not None:
        words = f"all {len(norms)} gradients are {shared:.6g} times the baseline's, before clipping"
        why, told = [], replace(told, why=("the backward pass is right but for what divides or multiplies all of it",))
    formats = formats_apart(context, site)
    cause, confidence, fix = told.cause, told.confidence, list(told.next)
    if formats is not None and cause in (None, "unknown"):
        cause, confidence = "precision-mismatch", "likely"
        why.insert(0, formats.text)
        fix = [formats.fix]
    if len(norms) > len(apart):
        why.append(f"the other {len(norms) - len(apart)} agree, and so does the backward pass up to there")
    if shared is not None:
        site, confidence = None, "likely"
    paths = [context.shown(side, "steps") for side in ("baseline", "candidate")]
    return replace(
        result(3, "failed", words, figures=figures), step=0, phase="grad" if site in names else told.phase, site=site,
        cause=cause or "unknown", confidence=confidence, why=(*why, *told.why),
        next=(*fix, f"hypocenter diff {paths[0]} {paths[1]} --steps 0"),
    )  # fmt: skip
