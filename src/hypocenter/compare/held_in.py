"""In which format values were computed, though they are kept in a wider one: what was cast back shows it."""

from __future__ import annotations

import numpy as np

from hypocenter.compare.case import Values

_BEYOND_ROUND = 0x1FFFFF  # bits of a float32's mantissa below the first two


def held_in(values: Values) -> str:
    """The shortest format that holds the extremes exactly; the one they are kept in where they tell none."""
    extremes = np.array([values.min, values.max], np.float32)
    if values.dtype in ("float16", "bfloat16") or values.n < 2 or not np.isfinite(extremes).all():
        return values.dtype
    if not (extremes.view(np.uint32) & _BEYOND_ROUND).any():
        return values.dtype  # zeros, ones and halves are exact in every format, and tell none
    if not (extremes.view(np.uint32) & 0xFFFF).any():  # the lower 16 bits of a float32 are what bfloat16 leaves out
        return "bfloat16"
    with np.errstate(over="ignore"):
        return "float16" if (extremes.astype(np.float16) == extremes).all() else values.dtype
