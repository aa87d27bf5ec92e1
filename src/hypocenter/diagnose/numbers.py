"""How numbers read in a sentence."""

from __future__ import annotations

import math
from collections.abc import Iterable

WIDE_LIMIT = 1e38  # bfloat16 and float32 end at 3.4e38; float16 and fp8 far below
HUGE = 1e12  # no trained network works with activations, losses or gradients of this size


def short(value: float) -> str:
    """Write a number in five digits where that is readable, else in three with an exponent: 65504, 1.1e5, 3.4e38."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+inf" if value > 0 else "-inf"
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.5g}".replace("e+0", "e")
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def above(value: float, limit: float) -> str:
    """Write `value > limit`, with as many digits as it takes to see that it is."""
    text = short(value)
    if float(text) <= limit:
        text = repr(value)
    return f"{text} > {short(limit)}"


def listed(numbers: Iterable[int], at_most: int | None = None) -> str:
    """List whole numbers in rising order: "3, 5 to 9, 12".

    Args:
        at_most: single numbers and ranges that are shown; of the rest it is said how many. None: all are shown.
    """
    runs: list[list[int]] = []
    for n in sorted(numbers):
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    texts = [str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a} to {b}" for a, b in runs]
    shown = texts[:at_most]
    more = f" and {len(texts) - len(shown)} more" if len(texts) > len(shown) else ""
    return ", ".join(shown) + more
