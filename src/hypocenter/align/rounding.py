"""By how much formats round.

By how much rounding moves the loss and the grad norm alone, as the first step measured it.

Repeats of the baseline compute both in one order. The other side adds the same numbers up in another, at every step the
same way: what the first step lets pass is no departure later.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from hypocenter.align.context import Context
from hypocenter.formats import FORMATS, Format, format_of


def unit(dtype: str) -> float:
    """Return the largest relative error of rounding to a format; for an unknown one that of float32."""
    return _format(dtype).roundoff


def rounding(dtype: str) -> float:
    """Return how far values are put off where noise is measured, relative, as `run --calibrate` does it."""
    return _format(dtype).noise


def _format(dtype: str) -> Format:
    return format_of(dtype) or FORMATS["float32"]


def loss_rounding(context: Context) -> float:
    """Return the measured noise of the first step's loss, relative; 0 where it has no measured floor."""
    forward = context.earlier.get(2)
    floor = forward.figures.get("floor") if forward is not None and forward.verdict == "passed" else None
    return float(floor) if isinstance(floor, (int, float)) else 0.0


def grad_norm_rounding(context: Context) -> float:
    """Return the median noise of the first step's gradients, relative; 0 if unknown. A norm moves no more than that."""
    backward = context.earlier.get(3)
    norms: Any = backward.figures.get("local_norms") if backward is not None and backward.verdict == "passed" else None
    return median(float(one["floor"]) for one in norms) if norms else 0.0
