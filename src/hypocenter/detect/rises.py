"""When the gradient of one parameter jumps, among many: the largest rise of any of them, as one series.

Of thousands of norms some is always far above its own past. So it is asked by how much the farthest usually is, and
only what is far above that is a jump.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from hypocenter.detect.spikes import LEAST, WINDOW, Jump, Series

LEAST_RISE = 3.0  # octaves: 8 times
_ROUNDING = 2.0**-23  # of float32: a gradient that is less of the whole is what rounding left of zero
_EVERY = 8  # steps after which it is worked out again what is usual of each


class Rises:
    """Follow the norm of each parameter's gradient over steps, to find one that jumps."""

    def __init__(self) -> None:
        self._heights = np.empty((WINDOW, 0))
        self._usual = np.empty(0)
        self._n = 0
        self._largest = Series()

    def add(self, norms: Mapping[str, float]) -> tuple[str, Jump] | None:
        """Take in the norms of the next step; return the parameter that jumped with its jump, or None."""
        if len(norms) != self._usual.size:
            self._heights, self._usual, self._n = np.full((WINDOW, len(norms)), np.nan), np.full(len(norms), np.nan), 0
        values = np.fromiter(norms.values(), np.float64, len(norms))
        if values.size and np.minimum.reduce(values) > 0 and math.isfinite(np.add.reduce(values)):  # the usual case
            heights = np.log2(np.maximum(values, _ROUNDING * np.maximum.reduce(values), out=values))
        else:
            values, heights = self._of_some(values)
        if self._n >= LEAST and (self._n % _EVERY == 0 or self._n == LEAST):
            self._usual = np.median(self._heights[: self._n], axis=0)
        found = self._farthest(norms, values, heights - self._usual) if self._n >= LEAST else None
        self._heights[self._n % WINDOW] = heights
        self._n += 1
        return found

    def _of_some(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the norms that are looked at and their heights: nothing new is learned from idle parameters."""
        is_known = np.isfinite(values) & (values > 0)
        values = np.where(is_known, np.maximum(values, _ROUNDING * np.max(values, where=is_known, initial=0.0)), values)
        return values, np.log2(values, out=self._usual.copy(), where=is_known)

    def _farthest(self, norms: Mapping[str, float], values: np.ndarray, rises: np.ndarray) -> tuple[str, Jump] | None:
        place = int(rises.argmax()) if rises.size else -1
        rise = float(rises[place]) if rises.size else 0.0
        if not math.isfinite(rise):  # of something that was idle until now
            rises = np.where(np.isfinite(rises), rises, -np.inf)
            place = int(rises.argmax())
            rise = float(rises[place])
        jump = self._largest.add(2.0 ** max(rise, 0.0))
        if jump is None or rise < LEAST_RISE:
            return None
        usual, value = 2.0 ** float(self._usual[place]), float(values[place])
        limit = usual * max(jump.limit, 2.0**LEAST_RISE)
        return list(norms)[place], Jump(value=value, usual=usual, limit=min(limit, value))
