"""A learned temperature went to zero.

What it means
    Logits are divided by a learned temperature, which the optimizer has driven so low that the quotient does not fit
    its format.

How it is decided
    The blamed op is a division whose second operand is a tensor of one element, below 1e-3: likely; proven when the
    quotient is finite in float64. Asked before format-overflow, which is true as well but says less.

What to do
    Learn the logarithm of the temperature, or clamp it from below (CLIP clamps its inverse to 100).

When it is wrong
    When the logits are what exploded: then the temperature is low but has not moved for many steps.
"""

from __future__ import annotations

from hypocenter.diagnose.evidence import Evidence, Verdict
from hypocenter.diagnose.verdicts import cause

COLDEST = 1e-3  # contrastive losses start near 0.07 and are clamped at 0.01


@cause("example.cold-temperature", order=90)
def decide(evidence: Evidence) -> Verdict | None:
    """A division by one tiny number."""
    origin = evidence.origin
    if origin is None or not origin.op.startswith("aten.div") or len(origin.inputs) < 2:
        return None
    temperature = origin.inputs[1]
    if temperature.summary.n != 1 or not 0 < temperature.summary.absmax < COLDEST:
        return None
    return Verdict(
        cause="example.cold-temperature",
        confidence="proven" if evidence.float64.finite else "likely",
        title="logits were divided by a temperature near zero",
        why=(f"{temperature.origin or temperature.name} is {temperature.summary.absmax:.3g}",),
        limit=COLDEST,
        actual=temperature.summary.absmax,
        advice="clamp the temperature from below",
    )
