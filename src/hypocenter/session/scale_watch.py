"""Whether bad gradients under a loss scaler are the scale's doing: told by replays at scale 1, asked sparingly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hypocenter.detect.scale_track import ScaleTrack, Skip
from hypocenter.session.check import Check

AGAIN = 3  # skips with the same culprit, neither warm-up nor probing, after which one is replayed as it was

Answer = Literal["finite", "not-finite", "needs-all", "cannot-tell", "not-asked"]
"""needs-all: only all ranks together can tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What is known of a step that the scaler is about to skip."""

    at_scale_1: Answer
    is_again: bool = False  # one parameter goes bad again and again although the scale had fitted and it is the cause
    is_collapse: bool = False  # the scale keeps falling


class ScaleWatch:
    """Follows the loss scale of each optimizer, and asks a replay when there is something to learn.

    Args:
        last_in_model: of some parameters' names the one that the model has last; "" when it has none of them.
        at_scale_1: replays the micro-batches of a step without its loss scale.
    """

    def __init__(
        self, last_in_model: Callable[[Sequence[str]], str], at_scale_1: Callable[[float, Sequence[Any]], Answer]
    ) -> None:
        self._last_in_model, self._at_scale_1 = last_in_model, at_scale_1
        self._tracks: dict[str, ScaleTrack] = {}
        self._bad: dict[str, frozenset[str]] = {}  # in the last skip
        self._explained: set[str] = set()  # the skips in a row that go on have a cause

    def went_through(self, check: Check, step: int, scale: float) -> None:
        """Note that all gradients were finite at this scale."""
        key = check.key
        self._track(key).add(step, scale, skipped=False)
        self._bad.pop(key, None)
        self._explained.discard(key)

    def explained(self, check: Check) -> None:
        """Note that the cause of these skips was found: no need to look again while they go on as they are."""
        self._explained.add(check.key)

    def skipped(self, check: Check, bad: Sequence[str], step: int, scale: float, microbatches: Sequence[Any]) -> Judged:
        """Note that gradients are not finite and that the scaler will skip the step; return what is known of the cause.

        A replay is asked at the 1st, 2nd, 4th, 8th, ... skip in a row (a warm-up is normal and must stay cheap), when
        other parameters go bad than before, and when this skip shows that something is wrong.

        Args:
            check: of the step.
            bad: parameters whose gradient is not finite, before any clipping.
            step: of the clock.
            scale: of the step.
            microbatches: of the step.
        """
        key = check.key
        track = self._track(key)
        culprit = self._last_in_model(bad)
        n = track.n_in_a_row + 1
        skip = Skip(step=step, scale=scale, culprit=culprit, is_first=n == 1)
        is_collapse = track.collapse(skip) is not None
        is_again = bool(culprit) and track.kind(scale) == "fall" and track.times(culprit) + 1 == AGAIN
        is_news = not set(bad) <= self._bad.get(key, frozenset())
        track.add(step, scale, skipped=True, culprit=culprit)
        self._bad[key] = frozenset(bad)
        if key in self._explained and not is_news:
            return Judged(at_scale_1="not-asked")
        is_due = n & (n - 1) == 0 or is_news or is_again or is_collapse
        answer = self._at_scale_1(scale, microbatches) if is_due else "not-asked"
        is_again = is_again and answer in ("finite", "needs-all")
        return Judged(at_scale_1=answer, is_again=is_again, is_collapse=is_collapse)

    def _track(self, key: str) -> ScaleTrack:
        return self._tracks.setdefault(key, ScaleTrack())
