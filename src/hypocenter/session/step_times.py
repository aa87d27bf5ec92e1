"""Wall time of each step, and how much of it Hypocenter took."""

from __future__ import annotations

import time

from hypocenter.tap.quiet import depth


class StepTimes:
    """The times of the step under way. What runs within it as a context counts as Hypocenter's own time."""

    def __init__(self) -> None:
        self._step_began = self._began = time.perf_counter()
        self._tap_s = 0.0
        self._n_within = 0

    def __enter__(self) -> None:
        depth.value += 1
        self._n_within += 1
        if self._n_within == 1:
            self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        depth.value -= 1
        self._n_within -= 1
        if not self._n_within:
            self._tap_s += time.perf_counter() - self._began

    def end_step(self) -> dict[str, float]:
        """Return the step's times as fields of its StepRecord, step_ms and tap_ms, and begin the next step."""
        now = time.perf_counter()
        if self._n_within:  # asked within: what began before this step's end is this step's
            self._tap_s += now - self._began
            self._began = now
        found = {"step_ms": 1000.0 * (now - self._step_began), "tap_ms": 1000.0 * self._tap_s}
        self._step_began, self._tap_s = now, 0.0
        return found
