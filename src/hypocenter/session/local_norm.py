"""The norm of what this rank alone computed, before it is reduced: brought by whoever sees it, taken at the check."""

from __future__ import annotations

import math
from collections.abc import Sequence


class LocalNorm:
    """Of the step under way."""

    def __init__(self) -> None:
        self._norms: list[float] = []

    def add(self, norms: Sequence[float]) -> None:
        """Norms of single gradients, with the loss scale in them."""
        self._norms += norms

    def take(self, scale: float) -> float | None:
        """The norm of all that came since the last call, without the loss scale; None: nothing came."""
        norms, self._norms = self._norms, []
        return math.hypot(*norms) / scale if norms else None
