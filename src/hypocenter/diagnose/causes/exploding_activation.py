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
from hypocenter.diagnose.operators import subject
from hypocenter.diagnose.rulings import floating, overflow
from hypocenter.diagnose.trend import growth
from hypocenter.diagnose.verdicts import cause

WIDE_LIMIT = 1e38  # bfloat16 and float32 end at 3.4e38; float16 and fp8 far below
HUGE = 1e12  # no trained network works with activations of this size
GROWN_BITS = 10.0  # growth by a factor of 1000 over the recorded steps


@cause("exploding-activation", order=170)
def decide(evidence: Evidence) -> Verdict | None:
    """An overflow of a wide format by operands that had run away."""
    found, origin = overflow(evidence), evidence.origin
    if found is None or origin is None or origin.phase == "backward" or found.limit < WIDE_LIMIT:
        return None
    largest = max((t.summary.absmax for t in floating(origin)), default=0.0)
    trend = growth(evidence.history)
    if largest < HUGE and (trend is None or trend.bits < GROWN_BITS):
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
