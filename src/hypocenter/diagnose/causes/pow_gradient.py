"""The gradient of a power was taken where it is infinite.

What it means
    d x^p / dx = p x^(p-1) is infinite at x = 0 for p < 1. The forward value, 0, is clean. The gradient to the
    exponent has log(x) in it.

How it is decided
    The blamed operation belongs to the backward of pow and float64 is not finite there either: proven. Without
    re-execution: likely.

What to do
    Add eps to the base, clamp it away from 0, or use a power with p >= 1 near 0.

When it is wrong
    When the result is discarded by a mask afterwards: that is the masked-gradient-trap, which is preferred.
"""

from __future__ import annotations

from hypocenter.diagnose import why
from hypocenter.diagnose.evidence import Evidence, Verdict
from hypocenter.diagnose.operators import subject
from hypocenter.diagnose.rulings import differentiated_op, scalar, singular
from hypocenter.diagnose.verdicts import cause


@cause("pow-gradient", order=120)
def decide(evidence: Evidence) -> Verdict | None:
    """In the backward of pow, not finite in float64 either."""
    origin, confidence = evidence.origin, singular(evidence)
    if origin is None or confidence is None or origin.phase != "backward":
        return None
    if differentiated_op(origin) not in ("pow", "float_power"):
        return None
    exponent = scalar(origin, "exponent")  # of the operator in backward: p - 1
    power = (f"x is raised to the power {exponent:g} in the derivative",) if exponent is not None else ()
    return Verdict(
        cause="pow-gradient",
        confidence=confidence,
        title=f"{subject(origin)} at exactly 0",
        why=(
            "the forward value is finite; the derivative p · x^(p-1) is not",
            *power,
            *why.inputs(evidence),
            *why.not_finite_in_float64(evidence),
        ),
        limit=0.0,
        advice="add eps to the base",
    )
