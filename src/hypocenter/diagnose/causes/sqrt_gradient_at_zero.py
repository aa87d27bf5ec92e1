"""The gradient of a square root was taken at zero.

What it means
    d sqrt(x) / dx = 1 / (2 sqrt(x)) is infinite at 0, and the chain rule multiplies it by 0: NaN. The forward
    pass is clean. Norms and distances written as sqrt(sum(x ** 2)), standard deviations of constant channels,
    and acos or asin at ±1 are the same thing.

How it is decided
    The blamed operation belongs to the backward of sqrt, norm, std, cdist, acos, asin or acosh, and float64 is
    not finite there either: proven. Without re-execution: likely.

What to do
    Use torch.linalg.norm, whose gradient at 0 is defined as 0 (MindSpore's norm has none there), or put eps inside
    the root: sqrt(x + eps).

When it is wrong
    When the root's result is discarded by a mask afterwards: that is the masked-gradient-trap, which is
    preferred when the evidence shows the mask.
"""

from __future__ import annotations

from hypocenter.diagnose import why
from hypocenter.diagnose.evidence import Evidence, Verdict
from hypocenter.diagnose.operators import is_of_mindspore, subject
from hypocenter.diagnose.rulings import differentiated_op, singular
from hypocenter.diagnose.verdicts import cause

_ROOTS = frozenset(
    {"sqrt", "rsqrt", "norm", "linalg_vector_norm", "linalg_norm", "linalg_matrix_norm", "cdist", "euclidean_dist"}
    | {"std", "std_mean", "hypot", "acos", "asin", "acosh", "renorm", "pairwise_distance", "dist"}
)
_ADVICE = "use torch.linalg.norm, or add eps inside the root"
_AT_ONE = frozenset({"acos", "asin", "acosh"})


@cause("sqrt-gradient-at-zero", order=130)
def decide(evidence: Evidence) -> Verdict | None:
    """In the backward of a root, not finite in float64 either."""
    origin, confidence = evidence.origin, singular(evidence)
    if origin is None or confidence is None or origin.phase != "backward" or differentiated_op(origin) not in _ROOTS:
        return None
    at = "±1" if differentiated_op(origin) in _AT_ONE else "exactly 0"
    upstream = ("the gradient that came in is exactly 0 there: 0 / 0 is NaN",) if evidence.upstream_grad_zero else ()
    return Verdict(
        cause="sqrt-gradient-at-zero",
        confidence=confidence,
        title=f"{subject(origin)} at {at}",
        why=(
            "the forward value is finite; its derivative contains 1 / sqrt(0)",
            *upstream,
            *why.inputs(evidence),
            *why.not_finite_in_float64(evidence),
        ),
        limit=0.0,
        actual=0.0,
        advice="add eps inside the root" if is_of_mindspore(origin.op) else _ADVICE,
    )
