"""Whether a clip to a norm acts on what the optimizer uses: on all of it, and before it is used. For HC238."""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypocenter.detect.law_rows import CLIPPED_EACH, CLIPPED_EARLY, CLIPPED_IN_PART, CLIPPED_IN_VAIN, SITE, WHOLE
from hypocenter.session.check import Check
from hypocenter.session.events import Observed, Observer, Update
from hypocenter.session.observers.optimizer_rows import number_row
from hypocenter.tap.source import user_frame

EACH = 4  # clips
FEW = 4  # gradients that tell whether those that were clipped are still there
MOST_OPTIMIZERS = 8  # whose first updates are looked at
LOOKED = 4  # first updates that clip, and the first after clips are made otherwise; what is so at each of them is told
SERIES = 4  # of so many updates are looked at


@dataclass(slots=True)
class _Seen:
    """What the clips of one optimizer did at its updates so far."""

    n_in_vain: int = 0  # with a clip that came after the update before, and none after backward
    n_of_nothing: int = 0  # with clips that were given no gradient at all
    n_in_part: int = 0  # with clips that left out the same parameters
    left_out: frozenset[str] = frozenset()
    n_early: int = 0  # with a clip after which gradients were added to what it had clipped, by a line seen before
    n_before_ranks: int = 0  # with a clip after which the program added the gradients of other ranks
    n_each: int = 0  # with so many clips that have no parameter in common, at least EACH
    n_acted: int = 0  # with clips that were seen to act
    n_looked: int = 0
    n_series: int = 1
    since: int = -1  # the first update of a later series
    form: tuple[int, ...] = ()  # how many clips came in time and too late, and of how many of how many parameters
    was_whole: bool = False  # clips before were given all that was used
    is_told: bool = False


class ClipCalls(Observer[Observed]):
    """Writes a row after the first updates of an optimizer, if their clips did not act, or on a part alone.

    And after the first of those whose clips are made otherwise: before backward, or of fewer parameters than there are.
    """

    def __init__(self, context: Observed) -> None:
        super().__init__(context)
        self._seen: defaultdict[int, _Seen] = defaultdict(_Seen)  # by id of the optimizer's first parameter
        self._timely: list[Sequence[Any]] = []  # what was clipped since the last update, after a backward
        self._late: list[Sequence[Any]] = []  # and before one
        self._is_of_some = False  # a clip since the last update was given a gradient
        self._n_looked = 0  # updates that clip, of all optimizers
        self._is_looking = False  # since a first clip
        self._clipped: list[tuple[Any, Any, int]] = []  # by the last one: parameter, gradient and version then
        self._lines: set[tuple[str, int]] = set()  # that called backward since the last update
        self._is_early = self._is_before_ranks = self._has_acted = False
        self._without = -1  # the last update before which nothing was clipped
        self._max_norm = math.inf
        context.by_hand.append(self._adds_over_ranks)

    def before_clip(self, parameters: Sequence[Any], max_norm: float) -> None:
        """Note which gradients are clipped, and when. A clip to infinity only measures, so it does not count."""
        if math.isfinite(max_norm):
            (self._timely if self.context.tape.microbatches else self._late).append(parameters)
            self._is_of_some = self._is_of_some or any(p.grad is not None for p in parameters)
            self._max_norm, self._is_looking = max_norm, self._n_looked < LOOKED * MOST_OPTIMIZERS
            if self.context.tape.microbatches and self._is_looking:
                with_gradients = [p for p in parameters if p.grad is not None][:FEW]
                versions = self.context.framework.versions([p.grad for p in with_gradients])
                self._clipped = [(p, p.grad, v) for p, v in zip(with_gradients, versions, strict=True)]

    def seen_before_clip(self, parameters: Sequence[Any], check: Check) -> None:
        """Note whether the clip acts: whether the norm is larger than its limit."""
        self._has_acted = self._has_acted or check.total_norm > self._max_norm

    def at_rest(self) -> Iterable[str]:
        """Without clips there is nothing to look at."""
        return (
            ("before_backward", "before_update", "after_update")
            if not (self._is_looking or self._timely or self._late)
            else ()
        )

    def before_backward(self, roots: Sequence[Any]) -> None:
        """Note whether this backward adds to gradients that were clipped already."""
        if not self._is_looking or (frame := user_frame(sys._getframe(1))) is None:
            return
        line, clipped = (frame.f_code.co_filename, frame.f_lineno), self._clipped
        self._clipped = []
        if clipped and line in self._lines:
            still = [(g, v) for p, g, v in clipped if p.grad is g]
            now = self.context.framework.versions([g for g, _ in still])
            # The clip itself writes once; who zeroes them or takes them elsewhere writes once more.
            self._is_early = self._is_early or (
                len(still) == len(clipped) and all(0 <= b - a <= 1 for (_, a), b in zip(still, now, strict=True))
            )
        self._lines.add(line)

    def _adds_over_ranks(self) -> None:
        """Note whether gradients were clipped before the program adds those of other ranks to its own."""
        self._is_before_ranks = self._is_before_ranks or bool(self._timely)

    def before_update(self, update: Update) -> None:
        """Compare what was clipped with the final gradients, and write a row after the first updates."""
        timely, late = self._timely, self._late
        if not (timely or late):
            self._without = update.step
        if not (timely or late) or not update.parameters or not update.microbatches:
            return
        form = (len(timely), len(late), sum(map(len, timely)), len(update.gradients))
        seen = self._seen[id(update.parameters[0])]
        if seen.n_looked >= LOOKED:
            if form == seen.form or seen.is_told or seen.n_series == SERIES:
                return
            since = update.step - (not timely and self._without == update.step - 1)  # a late clip was meant for that
            seen = _Seen(n_series=seen.n_series + 1, since=since, was_whole=not seen.left_out)
            self._seen[id(update.parameters[0])] = seen
        seen.form = form
        seen.n_looked += 1
        self._n_looked += 1
        seen.n_early += self._is_early
        seen.n_before_ranks += self._is_before_ranks
        seen.n_acted += self._has_acted
        together = [id(p) for parameters in timely for p in parameters]
        seen.n_each += len(timely) >= EACH and len(set(together)) == len(together)
        own = {id(parameter) for parameter, _ in update.gradients}
        clipped = {id(p) for parameters in timely for p in parameters}
        is_late = not own & clipped and any(id(p) in own for parameters in late for p in parameters)
        seen.n_in_vain += is_late
        seen.n_of_nothing += not self._is_of_some and not late
        left_out = frozenset(self.context.label(p) for p, _ in update.gradients if id(p) not in clipped)
        is_part = 0 < len(left_out) < len(own)
        seen.n_in_part += is_part and left_out == (seen.left_out or left_out)
        seen.left_out = left_out
        if seen.n_looked < LOOKED:
            return
        if seen.n_each == LOOKED:
            self._tell(update, seen, SITE, CLIPPED_EACH, frozenset(map(str, range(len(timely)))))
        # before the first clip no line was noted
        if seen.n_acted and (seen.n_early >= LOOKED - 1 or seen.n_before_ranks == LOOKED):
            of = "micro-batches" if seen.n_early >= LOOKED - 1 else "ranks"
            self._tell(update, seen, SITE, CLIPPED_EARLY, left_out, of=of)
        elif seen.n_in_part == LOOKED:
            self._tell(update, seen, min(left_out), CLIPPED_IN_PART, left_out, of=WHOLE if seen.was_whole else "")
        elif seen.n_in_vain == LOOKED:
            self._tell(update, seen, SITE, CLIPPED_IN_VAIN, left_out)
        elif seen.n_of_nothing >= LOOKED - 1:  # a generator of parameters holds some once
            self._tell(update, seen, SITE, CLIPPED_IN_VAIN, left_out, of="nothing")

    def _tell(self, update: Update, seen: _Seen, site: str, port: str, left_out: frozenset[str], of: str = "") -> None:
        seen.is_told = True
        order, n = self.context.clock.next_order(), len({id(parameter) for parameter, _ in update.gradients})
        row = number_row(site, port, update.step, order, len(left_out), module=of, call=n)
        self.rows.append(row if seen.since < 0 else replace(row, names=(str(seen.since),)))

    def after_update(self, update: Update) -> None:
        """Forget this step's clips: what is clipped from here on is for the next update, or too late."""
        self._timely, self._late, self._is_of_some = [], [], False
        self._clipped, self._is_early, self._is_before_ranks, self._has_acted = [], False, False, False
        self._lines.clear()
