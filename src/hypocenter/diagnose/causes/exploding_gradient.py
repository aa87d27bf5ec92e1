"""Gradients grew until even a wide format overflowed.

What it means
    In backward an operation exceeded 3.4e38, the end of bfloat16 and float32, with operands that were already
    enormous: the chain of derivatives multiplies up, as in long recurrences, deep stacks without norms, or near
    a singularity.

How it is decided
    An overflow (finite in float64, above the limit) in backward, in a format as wide as bfloat16 or float32,
    whose largest operand is above 1e12. Confidence is that of the overflow.

What to do
    Clip by norm (which needs finite gradients), shorten the recurrence, normalise, or lower the learning rate.

When it is wrong
    When one derivative is nearly singular (a division by 1e-30): then its denominator is what to mend; see the
    inputs.
"""

from __future__ import annotations

from hypocenter.diagnose import why
from hypocenter.diagnose.evidence import Evidence, Verdict
from hypocenter.diagnose.operators import subject
from hypocenter.diagnose.rulings import ran_away
from hypocenter.diagnose.verdicts import cause


@cause("exploding-gradient", order=180)
def decide(evidence: Evidence) -> Verdict | None:
    """An overflow of a wide format in backward by operands that had run away."""
    found, origin = ran_away(evidence), evidence.origin
    if found is None or origin is None or origin.phase != "backward":
        return None
    return Verdict(
        cause="exploding-gradient",
        confidence=found.confidence,
        title=f"gradients grew until {subject(origin)} overflowed {found.dtype}",
        why=(*why.inputs(evidence), *why.exceeded(evidence, found)),
        limit=found.limit,
        actual=found.actual,
        advice="clip by norm, normalise, shorten the recurrence, or lower the learning rate",
    )
