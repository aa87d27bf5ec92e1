"""The loss scale was too large for a gradient.

What it means
    The gradient itself fits its format; multiplied by the loss scale it does not. The scaler skips such a step
    and halves the scale, which is how it finds the largest scale that works: a few skips at the start are
    normal.

How it is decided
    The blamed operation is in backward (or is the multiplication of the loss by the scale), its float64 result
    is above the limit of the format, and divided by the loss scale it is below: proven. Without re-execution:
    likely.

What to do
    Nothing, if the scale settles. If it keeps falling, a gradient is truly large or not finite at any scale:
    look for an error in the same run, clip, or use bfloat16, which needs no scale.

When it is wrong
    When the step would not be finite at scale 1 either; that is then reported by another cause, which is
    preferred.
"""

from __future__ import annotations

from hypocenter.diagnose import why
from hypocenter.diagnose.evidence import Evidence, OpFacts, Verdict
from hypocenter.diagnose.numbers import short
from hypocenter.diagnose.operators import PRODUCT, base, subject
from hypocenter.diagnose.rulings import overflow
from hypocenter.diagnose.verdicts import cause


@cause("loss-scale-overflow", order=160)
def decide(evidence: Evidence) -> Verdict | None:
    """Above the limit with the scale, below without."""
    scale = evidence.loss_scale if evidence.replayed_scale is None else evidence.replayed_scale
    found, origin = overflow(evidence), evidence.origin
    if found is None or origin is None or scale is None or scale <= 1 or found.actual / scale > found.limit:
        return None
    if origin.phase != "backward" and not _scales_the_loss(origin, scale):
        return None
    return Verdict(
        cause="loss-scale-overflow",
        confidence=found.confidence,
        title=f"the loss scale {short(scale)} made {subject(origin)} overflow {found.dtype}",
        why=(
            *why.inputs(evidence),
            *why.exceeded(evidence, found),
            f"without the scale it is {short(found.actual / scale)}, which fits",
        ),
        limit=found.limit,
        actual=found.actual,
        advice="let the scaler back off; start from a lower scale if the first steps matter",
    )


def _scales_the_loss(origin: OpFacts, scale: float) -> bool:
    if base(origin.op) not in PRODUCT or origin.site not in ("", "loss"):
        return False
    is_scale = [t for t in origin.inputs if t.summary.n == 1 and t.summary.min == t.summary.max == scale]
    return bool(is_scale) or scale in [v for v in origin.scalars.values() if isinstance(v, (int, float))]
