"""How far a loss scale fell, and over how many skipped updates: read off step records once the run is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hypocenter.nouns import StepRecord

RECOVERED = 64  # updates in a row that went through end a fall
NO_INVERSE = 2.0**-128  # 1 / scale is infinite in float32 from here down: unscaling makes inf, and NaN of zeros


@dataclass(frozen=True, slots=True, kw_only=True)
class Fall:
    """Skips from one step on until the scale is back, or updates go through again for long."""

    first: int
    last: int
    n_skips: int
    from_scale: float
    to_scale: float

    def __contains__(self, step: object) -> bool:
        return isinstance(step, int) and self.first <= step <= self.last

    def sentence(self) -> str:
        """Say it in words: "loss scale 65,536 -> 5.8e-11, 50 skips (steps 6 to 55)"."""
        span = f"step {self.first}" if self.first == self.last else f"steps {self.first} to {self.last}"
        skips = f"{self.n_skips:,} skip{'' if self.n_skips == 1 else 's'} ({span})"
        if self.to_scale == self.from_scale:
            return f"loss scale {scale_text(self.from_scale)}, {skips}"
        return f"loss scale {scale_text(self.from_scale)} -> {scale_text(self.to_scale)}, {skips}"


def scale_text(scale: float) -> str:
    """Write a loss scale as people do: 65,536 or 5.8e-11."""
    return f"{scale:,.0f}" if 1 <= scale < 1e12 else f"{scale:.2g}"


def fall_from(records: Sequence[StepRecord], step: int) -> Fall | None:
    """Return the fall that begins with the first skip at or after a step; None when there is none there.

    Args:
        records: of one rank, in order.
        step: where to look; the skip must be among the next few updates.
    """
    start = next((i for i, r in enumerate(records) if r.step >= step and r.skipped and _has_scale(r)), None)
    if start is None or records[start].loss_scale is None:
        return None
    first = records[start]
    top = first.loss_scale or 0.0
    last, n, n_through = start, 0, 0
    for i in range(start, len(records)):
        record = records[i]
        if record.skipped:
            last, n, n_through = i, n + 1, 0
            continue
        n_through += 1
        if n_through >= RECOVERED or not _has_scale(record) or (record.loss_scale or 0.0) >= top:
            break
    return Fall(
        first=first.step,
        last=records[last].step,
        n_skips=n,
        from_scale=top,
        to_scale=_after(records, last),
    )


def first_without_inverse(records: Sequence[StepRecord]) -> int | None:
    """Return the first update at a scale so small that unscaling multiplied gradients by infinity."""
    steps = (r.step for r in records if r.loss_scale is not None and r.loss_scale <= NO_INVERSE and not r.skipped)
    return next(steps, None)


def streaks(records: Sequence[StepRecord]) -> list[list[int]]:
    """Return the steps of skipped updates under a loss scaler, each list one unbroken run of them."""
    found: list[list[int]] = []
    is_open = False
    for record in records:
        if record.skipped and _has_scale(record):
            if not is_open:
                found.append([])
            found[-1].append(record.step)
            is_open = True
        else:
            is_open = False
    return found


def _after(records: Sequence[StepRecord], last: int) -> float:
    """Return the scale that the last skip left: that of the next step, or lowered as by the skip before."""
    scale = records[last].loss_scale or 0.0
    if last + 1 < len(records) and _has_scale(records[last + 1]):
        return records[last + 1].loss_scale or 0.0
    before = records[last - 1] if last else None
    if before is None or not before.skipped or not _has_scale(before):
        return scale
    return scale * min(1.0, scale / (before.loss_scale or scale))


def _has_scale(record: StepRecord) -> bool:
    return record.loss_scale is not None and 0 < record.loss_scale < math.inf
