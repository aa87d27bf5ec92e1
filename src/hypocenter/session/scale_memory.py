"""Which loss scale a cure should let the run train with: one that it has trained with, or the one it began with."""

from __future__ import annotations

LARGEST_START = 65536.0  # torch's GradScaler begins there; larger starting values are meant to be found too large


class ScaleMemory:
    """Loss scales of the steps so far."""

    def __init__(self) -> None:
        self._first: float | None = None
        self._healthy: float | None = None

    def note(self, scale: float | None, *, healthy: bool) -> None:
        """Note that a step had this loss scale (None without a scaler) and whether it was healthy."""
        if scale is None or not scale > 0:
            return
        if self._first is None:
            self._first = scale
        if healthy:
            self._healthy = max(scale, self._healthy or 0.0)

    @property
    def to_train_with(self) -> float | None:
        """The largest scale of a healthy step; before the first one that of the first step, if not exorbitant.

        A collapsed scale is a symptom: a cure found at 1e-30 would not let the run train at 65536.
        """
        if self._healthy is not None:
            return self._healthy
        return None if self._first is None else min(self._first, LARGEST_START)
