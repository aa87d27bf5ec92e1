"""One line per reporting interval on stderr, from rank 0 only: how the run is doing, and what watching it costs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TextIO

from hypocenter.nouns import Finding, Reading, StepRecord
from hypocenter.record.catalogue import SinkStart, sink

INTERVAL_S = 10.0  # seconds between two lines: six a minute stay readable in a log file of days


@sink("console")
class Console:
    """Prints whole lines only (never a carriage return, which a log file would keep).

    Args:
        start: only rank 0 prints.
        interval_s: seconds between two lines; the first step always prints, and so does a step with bad gradients.
        stream: stderr when not given.
        clock: seconds, monotonic.
    """

    asks_at_end = False  # what ends training says what was found itself

    def __init__(
        self,
        start: SinkStart | None = None,
        *,
        interval_s: float = INTERVAL_S,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._silent = start is not None and start.rank != 0
        self._interval_s = interval_s
        self._stream = stream
        self._clock = clock
        self._next_s: float | None = None
        self._step_ms = 0.0  # summed since the last line
        self._tap_ms = 0.0

    def write(self, readings: Sequence[Reading], step: StepRecord | None) -> None:
        """Print the step when a line is due."""
        if self._silent or step is None:
            return
        self._step_ms += step.step_ms
        self._tap_ms += step.tap_ms
        now_s = self._clock()
        if self._next_s is None or now_s >= self._next_s or step.n_bad_grads or step.skipped:
            self._print(line(step, _overhead(self._tap_ms, self._step_ms)))
            self._next_s = now_s + self._interval_s
            self._step_ms = self._tap_ms = 0.0

    def finding(self, finding: Finding) -> None:
        """Print the finding's first line."""
        if not self._silent:
            self._print(f"{finding.severity}[{finding.code}]: {finding.title}, step {finding.step}")

    def close(self) -> None:
        """Do nothing: no line is held back."""

    def _print(self, text: str) -> None:
        print(f"hypocenter: {text}", file=self._stream or sys.stderr, flush=True)


def line(step: StepRecord, overhead_percent: float | None) -> str:
    """Return a step in words; what is not known is left out."""
    parts = [f"step {step.step:,}"]
    parts += [
        f"{name} {value:.4g}"
        for name, value in (
            ("loss", step.loss), ("grad norm", step.grad_norm), ("loss scale", step.loss_scale), ("lr", step.lr),
        )
        if value is not None
    ]  # fmt: skip
    if overhead_percent is not None:
        parts.append(f"tap {overhead_percent:.1f} %")
    if step.n_bad_grads:
        parts.append(f"{step.n_bad_grads:,} parameters with non-finite gradients")
    if step.skipped:
        parts.append("step skipped")
    return ", ".join(parts)


def _overhead(tap_ms: float, step_ms: float) -> float | None:
    """Return the per cent that watching adds to the program's own time; None when none was measured."""
    own_ms = step_ms - tap_ms
    return 100.0 * tap_ms / own_ms if own_ms > 0.0 else None
