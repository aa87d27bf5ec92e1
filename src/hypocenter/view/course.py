"""The steps of a job in bounded memory: what curves and tables are drawn from, however long it trains.

Of many steps those are kept whose number the stride divides, the latest, and the first that went bad; when they become
too many the stride doubles. All ranks keep the same steps, so values of one step meet whatever comes first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hypocenter.nouns import StepRecord
from hypocenter.report.page.curves import is_bad

LATEST = 16  # steps that are kept whole, for the table
MOST_BAD = 64  # bad steps that are kept whatever the stride


@dataclass(slots=True)
class RankNow:
    """How far a rank has come."""

    last: StepRecord | None = None
    first_bad_step: int | None = None
    n_steps: int = 0


@dataclass(slots=True)
class _AtStep:
    n_losses: int = 0
    losses: float = 0.0  # their sum
    norm: float | None = None  # the worst
    lowest: int = 1 << 62  # rank of `record`
    record: StepRecord | None = None
    n_bad_grads: int = 0
    skipped: bool = False
    step_ms: float = 0.0  # the longest


class Course:
    """Steps of one job, or of one rank.

    Args:
        most: steps that are kept; up to twice as many for a while.
    """

    def __init__(self, most: int) -> None:
        self._most, self._stride = most, 1
        self._steps: dict[int, _AtStep] = {}
        self._bad: set[int] = set()
        self.last_step = -1

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, rank: int, record: StepRecord) -> None:
        """Take what a rank recorded of a step."""
        step = record.step
        self.last_step = max(self.last_step, step)
        if is_bad(record) and len(self._bad) < MOST_BAD:
            self._bad.add(step)
        if not self._is_kept(step):
            return
        at = self._steps.get(step)
        if at is None:
            at = self._steps[step] = _AtStep()
            if len(self._steps) > 2 * self._most:
                self._thin_out()
        if record.loss is not None:
            at.n_losses, at.losses = at.n_losses + 1, at.losses + record.loss
        if record.grad_norm is not None and (at.norm is None or _size(record.grad_norm) > _size(at.norm)):
            at.norm = record.grad_norm
        if rank < at.lowest:
            at.lowest, at.record = rank, record
        at.n_bad_grads = max(at.n_bad_grads, record.n_bad_grads)
        at.skipped |= record.skipped
        at.step_ms = max(at.step_ms, record.step_ms)

    def records(self) -> list[StepRecord]:
        """Return a record per kept step, in order: the mean loss, the worst gradient norm, the slowest rank's time."""
        return [_record(self._steps[step]) for step in sorted(self._steps)]

    def latest(self) -> list[StepRecord]:
        """Return the last steps, the last one first."""
        return self.records()[: -LATEST - 1 : -1]

    def _is_kept(self, step: int) -> bool:
        return step % self._stride == 0 or step > self.last_step - LATEST or step in self._bad

    def _thin_out(self) -> None:
        while len(self._steps) > self._most + LATEST + len(self._bad):
            self._stride *= 2
            self._steps = {step: at for step, at in self._steps.items() if self._is_kept(step)}


def _size(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _record(at: _AtStep) -> StepRecord:
    record = at.record
    assert record is not None
    return StepRecord(
        step=record.step, n_microbatches=record.n_microbatches, loss=at.losses / at.n_losses if at.n_losses else None,
        grad_norm=at.norm, loss_scale=record.loss_scale, lr=record.lr, skipped=at.skipped, step_ms=at.step_ms,
        tap_ms=record.tap_ms, n_bad_grads=at.n_bad_grads, finding=record.finding,
    )  # fmt: skip
