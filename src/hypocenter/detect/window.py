"""What a rule sees: one step of one rank, and what earlier steps of that rank have shown."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from hypocenter.nouns import Reading, StepRecord

KEPT_RECORDS = 1024  # step records of the past that rules may look at
KEPT_ROWS = 64  # readings of one site and port that rules may look at


@dataclass(slots=True, kw_only=True)
class History:
    """What a rank's earlier steps have shown. Written by the engine after each step, read by rules."""

    records: deque[StepRecord] = field(default_factory=lambda: deque[StepRecord](maxlen=KEPT_RECORDS))
    healthy_nonfinite: set[tuple[str, str]] = field(default_factory=set)  # (site, port) in steps where all was well
    _rows: dict[tuple[str, str], deque[Reading]] = field(default_factory=dict)

    def rows(self, site: str, port: str) -> tuple[Reading, ...]:
        """Earlier readings of a site and port that the engine was given, oldest first, at most KEPT_ROWS."""
        return tuple(self._rows.get((site, port), ()))

    def remember(self, window: Window, *, is_healthy: bool) -> None:
        """Take a step that all rules have seen into the past."""
        if window.record is not None:
            self.records.append(window.record)
        for reading in window.readings:
            if reading.replay:
                continue
            key = reading.site, reading.port
            self._rows.setdefault(key, deque(maxlen=KEPT_ROWS)).append(reading)
            if is_healthy and reading.summary.n_nonfinite:
                self.healthy_nonfinite.add(key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One step of one rank: its record, if it was completed, and its readings in execution order."""

    rank: int
    step: int
    record: StepRecord | None = None
    readings: tuple[Reading, ...] = ()
    history: History = field(default_factory=History)

    def of(self, *phases: str) -> Iterator[Reading]:
        """Readings of these phases that the run itself made: no replay, no recompute."""
        return (r for r in self.readings if r.phase in phases and not r.replay and not r.recompute)

    @property
    def loss_finite(self) -> bool:
        """Whether neither the record nor a reading of the loss is non-finite."""
        if self.record is not None and self.record.loss is not None and not math.isfinite(self.record.loss):
            return False
        return not any(r.summary.n_nonfinite for r in self.of("loss") if r.port == "value" and r.site == "loss")

    @property
    def grads_finite(self) -> bool:
        """Whether no parameter's gradient is known to be non-finite."""
        if self.record is not None and (self.record.n_bad_grads or not _finite(self.record.grad_norm)):
            return False
        return not any(r.summary.n_nonfinite for r in self.of("grad"))


def _finite(value: float | None) -> bool:
    return value is None or math.isfinite(value)
