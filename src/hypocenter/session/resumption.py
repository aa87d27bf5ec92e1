"""An attempt that goes on from a checkpoint counts its steps from there: it lies over the attempt before it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from hypocenter import launcher
from hypocenter.nouns import Reading
from hypocenter.tap.clock import Clock
from hypocenter.tap.resumed import steps_done


class Resumption:
    """Sets the clock at the first update of a process that was started again. The first attempt counts from 0.

    Args:
        clock: of the session.
        warn: takes one line of text.
        attempt: its number; from the environment when not given.

    Attributes:
        is_pending: the first update is still to come, and may tell the number of its step.
    """

    def __init__(self, clock: Clock, warn: Callable[[str], None], attempt: int | None = None) -> None:
        self._clock, self._warn = clock, warn
        self._attempt = launcher.attempt(os.environ) if attempt is None else attempt
        self.is_pending = self._attempt > 0

    def before_update(self, optimizer: Any, rows: Sequence[Reading]) -> list[Reading]:
        """Return the step's rows with the number that the step turns out to have. Call before each update."""
        if not self.is_pending:
            return list(rows) if not isinstance(rows, list) else rows
        self.is_pending = False
        done = steps_done(optimizer)
        if done is None:
            self._warn(f"attempt {self._attempt} counts its steps from 0: its optimizer does not tell where it goes on")
            return list(rows)
        self._clock.resume_at(done)
        return [replace(row, step=row.step + done) for row in rows]
