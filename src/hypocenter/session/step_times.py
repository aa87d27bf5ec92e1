"""Wall time of each step, and how much of it Hypocenter took."""

from __future__ import annotations

import time

from hypocenter.tap.quiet import quietly


class _Ours:
    __slots__ = ("_started", "_times")

    def __init__(self, times: StepTimes) -> None:
        self._times = times

    def __enter__(self) -> None:
        self._started = time.perf_counter()
        quietly().__enter__()

    def __exit__(self, *_: object) -> None:
        quietly().__exit__()
        self._times.took(time.perf_counter() - self._started)


class StepTimes:
    """Of the step under way."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._tap_s = 0.0

    def ours(self) -> _Ours:
        """What runs within this context is time that Hypocenter took."""
        return _Ours(self)

    def took(self, seconds: float) -> None:
        """Hypocenter took time from this step."""
        self._tap_s += seconds

    def end_step(self) -> dict[str, float]:
        """The fields of its StepRecord: step_ms, tap_ms."""
        now = time.perf_counter()
        found = {"step_ms": 1000.0 * (now - self._started), "tap_ms": 1000.0 * self._tap_s}
        self._started, self._tap_s = now, 0.0
        return found
