"""Activations grew until even a wide format overflowed.

What it means
    bfloat16 and float32 hold numbers up to 3.4e38. When an operation exceeds that in forward with operands that
    are already enormous, the format is not the matter: the model's values run away, from a learning rate that
    is too high, a residual path without a norm, or weights that diverge.

How it is decided
    An overflow (finite in float64, above the limit) in forward, in a format as wide as bfloat16 or float32,
    whose largest operand is above 1e12, or whose recorded |max| had grown by 2^10 or more over the steps
    before. Confidence is that of the overflow.

What to do
    Look at the trend: lower the learning rate, warm up, clip gradients, add a norm. A wider format only delays
    it.

When it is wrong
    When the large operands were in the data from the start: normalise the data.
"""

from __future__ import annotations

from hypocenter.diagnose import why
from hypocenter.diagnose.evidence import Evidence, Verdict
from hypocenter.diagnose.numbers import WIDE_LIMIT
from hypocenter.diagnose.operators import subject
from hypocenter.diagnose.rulings import Overflow, overflow, ran_away
from hypocenter.diagnose.verdicts import cause
from hypocenter.diagnose.why import growth, loss_growth

GROWN_BITS = 10.0  # growth by a factor of 1000 over the recorded steps


@cause("exploding-activation", order=170)
def decide(evidence: Evidence) -> Verdict | None:
    """An overflow of a wide format by operands that had run away."""
    origin = evidence.origin
    found = ran_away(evidence) or _grown(evidence)
    if found is None or origin is None or origin.phase == "backward":
        return None
    return Verdict(
        cause="exploding-activation",
        confidence=found.confidence,
        title=f"activations grew until {subject(origin)} overflowed {found.dtype}",
        why=(*why.inputs(evidence), *why.exceeded(evidence, found)),
        limit=found.limit,
        actual=found.actual,
        advice="lower the learning rate, warm up, clip gradients or add a norm; a wider format only delays it",
    )


def _grown(evidence: Evidence) -> Overflow | None:
    """Return an overflow of a wide format where |max| or the loss had grown before; else None."""
    found, trend = overflow(evidence), growth(evidence.history)
    if found is None or found.limit < WIDE_LIMIT:
        return None
    has_grown = trend is not None and trend.bits >= GROWN_BITS
    return found if has_grown or loss_growth(evidence.losses) is not None else None
