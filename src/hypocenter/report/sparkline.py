"""A row of numbers as one line of characters: `▇▆▅▄▃▂▁✕`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

BARS, BROKEN = "▁▂▃▄▅▆▇█", "✕"
ASCII_BARS, ASCII_BROKEN = "_.-~=+*#", "x"


def sparkline(values: Sequence[float | None], width: int = 60, *, ascii_only: bool = False) -> str:
    """One character per value, or per span of values when there are more than `width`.

    The height is the last finite value of the span between the smallest and the largest finite value of all; a span
    with a value that is not finite shows a cross, and one without values a space.
    """
    bars, broken = (ASCII_BARS, ASCII_BROKEN) if ascii_only else (BARS, BROKEN)
    finite = [value for value in values if value is not None and math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    n = min(len(values), max(width, 1))
    edges = [round(index * len(values) / n) for index in range(n + 1)] if n else []
    spans = [[v for v in values[a:b] if v is not None] for a, b in pairwise(edges)]
    return "".join(_character(span, low, high, bars, broken) for span in spans)


def _character(span: Sequence[float], low: float, high: float, bars: str, broken: str) -> str:
    if not span:
        return " "
    if not all(map(math.isfinite, span)):
        return broken
    level = (span[-1] - low) / (high - low) if high > low else 0.0
    return bars[min(len(bars) - 1, int(level * len(bars)))]
