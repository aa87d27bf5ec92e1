"""How gradients and the loss scale meet in any framework: what is clipped and divided, from norms before and after.

The observer of a framework hears of its scalers, notes what is seen on the way from backward to the update, and asks
for the rows when the update comes. For HC211 to HC215 and HC217.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from hypocenter.detect import misuse
from hypocenter.session.check import scalar_reading
from hypocenter.session.events import Observed, Observer, Update

ContextT = TypeVar("ContextT", bound=Observed)


class ScaleUse(Observer[ContextT]):
    """Compares the norms of an update with those of before."""

    def __init__(self, context: ContextT) -> None:
        super().__init__(context)
        self.multipliers: list[float | None] = []  # of the backwards since the last update; None: not known
        self.clips: list[tuple[dict[str, float], bool]] = []  # norms seen, and whether the scale was still in them
        self.value_clip = ""  # what clips values, if anything did
        self.n_asked = 0  # times that the program read the scale
        self.is_alone = False  # one optimizer makes all updates

    def is_applied(self, update: Update, scale: float) -> bool:
        """Return whether every loss of this update carries the scale, or may; write a row where one does not."""
        known = [m for m in self.multipliers if m is not None]
        if not known or len(known) < len(self.multipliers):
            return bool(known)
        least = min(known)
        if least < math.sqrt(scale):
            is_none = max(known) < math.sqrt(scale)
            self.note(
                update,
                misuse.APPLIED if is_none else misuse.APPLIED_TO_SOME,
                [least] if is_none or self.is_alone else [],
            )
            return False
        return True

    def compare(self, update: Update, scale: float, before_hand: Mapping[str, float]) -> None:
        """Compare the norms that a clip saw, and those after backward, with those at the update.

        Args:
            before_hand: norms as backward left them, where they were taken.
        """
        carried = {name: norm * scale for name, norm in update.check.grad_norms.items()}  # had nobody unscaled them
        seen, carries = next((clip for clip in self.clips if carried.keys() & clip[0].keys()), ({}, False))
        if carries and (factor := ratio(carried, seen)) is not None and factor < 0.999:
            self.note(update, misuse.CLIP_FACTOR, [factor], "clip_grad_norm_")
            self.note(update, misuse.CLIP_NORM, [_total(seen)])
        if before_hand:
            after_hand = carried if not seen else seen if carries else {n: v * scale for n, v in seen.items()}
            factor = ratio(after_hand, before_hand)
            if factor is not None and not 0.5 < factor < 2.0:
                is_clip = self.value_clip and not seen
                self.note(update, misuse.CLIP_FACTOR if is_clip else misuse.HAND_FACTOR, [factor], self.value_clip)
                self.note(update, misuse.CLIP_NORM if is_clip else misuse.HAND_NORM, [_total(before_hand)])
                self.note(update, misuse.ASKED_SCALE, [self.n_asked])

    def forget(self) -> None:
        """Forget what was measured: the gradients are used, and what comes belongs to the next update."""
        self.multipliers, self.clips, self.value_clip, self.n_asked = [], [], "", 0

    def note(self, update: Update, site: str, values: Iterable[float], module: str = "") -> None:
        """Write a row for each of these values."""
        for value in values:
            row = scalar_reading(site, "scaler", float(value), update.step, self.context.clock.next_order())
            self.rows.append(replace(row, module=module))


def ratio(after: Mapping[str, float], before: Mapping[str, float]) -> float | None:
    """Return the median of after / before over the names in both; None without any."""
    ratios = [norm / before[name] for name, norm in after.items() if before.get(name, 0.0) > 0.0]
    finite = [ratio for ratio in ratios if math.isfinite(ratio)]
    return statistics.median(finite) if finite else None


def _total(seen: Mapping[str, float]) -> float:
    return math.sqrt(sum(norm * norm for norm in seen.values()))
