"""A mean, variance or loss was taken over nothing.

What it means
    The mean over an empty set is 0 / 0, and the unbiased variance of one element divides by n - 1 = 0. A loss
    whose labels are all ignored is the same: no valid target is left in this micro-batch.

How it is decided
    The blamed operation averages, and the set is empty: an input with no elements, one element for an unbiased
    std or var, or no label other than ignore_index. Float64 is not finite either: proven. Without re-execution:
    likely.

What to do
    Divide a sum by max(1, number of valid elements), or skip a micro-batch without valid targets.

When it is wrong
    A hand-written sum / count with count 0 is reported as division-by-zero, which is what it is.
"""

from __future__ import annotations

from hypocenter.diagnose import why
from hypocenter.diagnose.evidence import Evidence, OpFacts, Verdict
from hypocenter.diagnose.operators import base, subject
from hypocenter.diagnose.rulings import fact, scalar, singular
from hypocenter.diagnose.verdicts import cause

_MEANS = frozenset({"mean", "nanmean", "median", "nanmedian", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"})
_SPREADS = frozenset({"std", "var", "var_mean", "std_mean"})
_LABELLED = ("nll_loss", "cross_entropy", "nll_loss2d")


@cause("empty-reduction", order=100)
def decide(evidence: Evidence) -> Verdict | None:
    """An average over no elements."""
    origin, confidence = evidence.origin, singular(evidence)
    if origin is None or confidence is None or origin.phase == "backward":
        return None
    found = _labels(evidence, origin) or _elements(evidence, origin)
    if found is None:
        return None
    title, line = found
    return Verdict(
        cause="empty-reduction",
        confidence=confidence,
        title=title,
        why=(line, *why.not_finite_in_float64(evidence)),
        limit=1.0,
        actual=0.0,
        advice="divide the sum by max(1, count), or skip such a micro-batch",
    )


def _labels(evidence: Evidence, origin: OpFacts) -> tuple[str, str] | None:
    if not base(origin.op).startswith(_LABELLED):
        return None
    ignore = fact(evidence, "ignore_index")
    ignore = ignore if ignore is not None else scalar(origin, "ignore_index")
    ignore = -100.0 if ignore is None else ignore  # PyTorch's default
    n_valid = fact(evidence, "n_valid_labels")
    labels = next((t for t in origin.inputs if t.name == "target" or t.dtype.startswith(("int", "uint"))), None)
    if n_valid is None and labels is not None and labels.summary.n:
        n_valid = 0.0 if labels.summary.min == labels.summary.max == ignore else None
    if n_valid is None and labels is not None and not labels.summary.n:
        n_valid = 0.0
    if n_valid != 0:
        return None
    n = f"all {labels.summary.n:,} labels are" if labels is not None and labels.summary.n else "every label is"
    return f"{subject(origin)} has no valid label", f"{n} ignored (ignore_index {ignore:.0f}): the mean is 0 / 0"


def _elements(evidence: Evidence, origin: OpFacts) -> tuple[str, str] | None:
    name = base(origin.op)
    if name not in _MEANS and name not in _SPREADS:
        return None
    n = _set_size(evidence, origin)
    if n == 0:
        return f"{subject(origin)} of an empty tensor", "its input has no elements"
    correction = scalar(origin, "correction")
    unbiased = origin.scalars.get("unbiased", True) is not False and (correction is None or correction >= 1)
    if name in _SPREADS and n == 1 and unbiased:
        return f"{subject(origin)} of one element", "the unbiased estimate divides by n - 1 = 0"
    return None


def _set_size(evidence: Evidence, origin: OpFacts) -> int | None:
    if not origin.inputs:
        n = fact(evidence, "n_elements")
        return int(n) if n is not None else None
    operand, output = origin.inputs[0], origin.outputs[0] if origin.outputs else None
    n_in = 1
    for size in operand.shape:
        n_in *= size
    n_out = 1
    for size in output.shape if output is not None else ():
        n_out *= size
    return n_in // n_out if n_out else None
