"""The ring of last module frames: readings in, grouped by the module call that they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypocenter.nouns import Phase, Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One call of one module, forward or backward: what went in and what came out."""

    step: int
    microbatch: int
    phase: Phase
    site: str
    module: str
    call: int
    recompute: bool
    readings: tuple[Reading, ...]


def frames_of(readings: Sequence[Reading], n_frames: int) -> tuple[Frame, ...]:
    """Return the last `n_frames` module calls, in the order in which they ended."""
    grouped: dict[tuple[object, ...], list[Reading]] = {}
    for reading in readings:
        key = (reading.step, reading.microbatch, reading.phase, reading.site, reading.call, reading.recompute)
        grouped.setdefault(key, []).append(reading)
    ended = sorted(grouped.values(), key=lambda group: (group[-1].step, group[-1].order))
    return tuple(_frame(group) for group in ended[max(0, len(ended) - n_frames) :])


def _frame(readings: list[Reading]) -> Frame:
    first = readings[0]
    return Frame(
        step=first.step,
        microbatch=first.microbatch,
        phase=first.phase,
        site=first.site,
        module=first.module,
        call=first.call,
        recompute=first.recompute,
        readings=tuple(readings),
    )
