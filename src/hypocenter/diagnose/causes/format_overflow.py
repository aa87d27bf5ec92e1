"""A finite result did not fit its number format.

What it means
    The operation had finite inputs and a finite true result, but the result is larger than the largest number
    of the format it is stored in, so it became infinity. float16 ends at 65504; float32 and bfloat16 end near
    3.4e38.

How it is decided
    The operation is executed again in float64 on the captured inputs. The result is finite there and its
    magnitude is above the limit of the format: proven. Without re-execution the operands' magnitudes must allow
    it: likely. An overflow that a later operation hides (1 / inf = 0) is the same cause; what hid it is named.

What to do
    Run the module in float32 (a verified island is offered when a replay with it was finite), use bfloat16, or
    scale before the operation. Clamping the result hides the symptom and keeps the wrong value.

When it is wrong
    When the infinity was meant: a mask written by adding the smallest number of the format twice overflows to
    -inf on purpose. And when the values should never have grown so large: see exploding-activation and the
    trend in `why`.
"""

from __future__ import annotations

from hypocenter.diagnose import why
from hypocenter.diagnose.evidence import Evidence, Verdict
from hypocenter.diagnose.operators import CAST, base, subject
from hypocenter.diagnose.rulings import overflow
from hypocenter.diagnose.verdicts import cause


@cause("format-overflow", order=200)
def decide(evidence: Evidence) -> Verdict | None:
    """Finite in float64, above the limit of the format."""
    found = overflow(evidence)
    if found is None or evidence.origin is None:
        return None
    is_cast = base(evidence.origin.op) in CAST and evidence.origin.phase != "backward"
    advice = "keep the value in its wider format" if is_cast else "run it in float32 or bfloat16, or scale its inputs"
    return Verdict(
        cause="format-overflow",
        confidence=found.confidence,
        title=f"{subject(evidence.origin)} overflowed {found.dtype}",
        why=(*why.inputs(evidence), *why.exceeded(evidence, found)),
        limit=found.limit,
        actual=found.actual,
        advice=advice,
    )
