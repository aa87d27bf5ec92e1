"""By how much rounding moves the loss alone, as the forward pass of the first step measured it.

Repeats of the baseline compute the loss in one order. The other side adds the same numbers up in another, at every step
the same way: what the first step lets pass is no departure later.
"""

from __future__ import annotations

from hypocenter.align.context import Context


def loss_rounding(context: Context) -> float:
    """Relative; 0 where the first step's loss has no measured floor."""
    forward = context.earlier.get(2)
    floor = forward.figures.get("floor") if forward is not None and forward.verdict == "passed" else None
    return float(floor) if isinstance(floor, (int, float)) else 0.0
