"""Which steps are audited: by a schedule, or, by default, as many as cost little."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Generator

from hypocenter import own_time, schedule

AUTO = "auto"
FREE_S, SHARE = 1.0, 0.0025  # what audits may take: so much in all, and of the time of the run
AT_ONCE, WHOLE = 256, 8  # parameters that an audit looks at; audits before that, which look at all
_REMEMBERED = 8  # steps


class Audits:
    """The decision for each step: made when it is first asked for, and then the same for all observers.

    Args:
        text: a schedule, or `auto`: the steps of `doubling`, and any other while what was spent so far is within
            FREE_S or SHARE of the time since the first step. Ranks may then decide differently; what is asked of all
            of them together is asked at the steps that all have audited.
        now: seconds, those that this process has worked.

    Attributes:
        is_planned: whether every rank audits a step, as long as none of them has to stop.
    """

    def __init__(self, text: str, now: Callable[[], float] = own_time.now) -> None:
        self._is_auto = text == AUTO
        self.is_planned = schedule.parse("doubling" if self._is_auto else text)
        self._is_scheduled = self.is_planned
        self.now = now
        self._began: float | None = None
        self._spent_s = 0.0
        self._decided: dict[int, int] = {}  # by step: number of its audit, from 1; 0: it is not audited
        self._n_audits = 0
        self._is_doubling = schedule.parse("doubling")

    def is_due(self, step: int) -> bool:
        """Return whether this step is audited."""
        known = self._decided.get(step)
        if known is None:
            if len(self._decided) >= _REMEMBERED:
                self._decided.pop(min(self._decided))
            is_audited = self._is_scheduled(step) or (self._is_auto and self._has_time())
            self._n_audits += is_audited
            known = self._decided[step] = self._n_audits if is_audited else 0
        return known > 0

    def part(self, step: int, n: int) -> slice:
        """Return which of so many parameters the audit of a step looks at, where an object for each takes its time.

        All of them, of most models. Of larger ones the first audits look at all as well, and those at the steps of
        `doubling`; the others take turns.
        """
        turns, number = -(-n // AT_ONCE), self._decided.get(step, 0)
        is_whole = turns <= 1 or number <= WHOLE or self._is_doubling(step)
        return slice(None) if is_whole else slice(number % turns, None, turns)

    def is_due_everywhere(self, step: int) -> bool:
        """Return whether every rank audits this step, however long its audits have taken."""
        return self._is_scheduled(step)

    def stop(self) -> None:
        """Audit no step any more."""
        self._is_auto, self._is_scheduled = False, schedule.parse("never")
        self._decided.clear()

    def spending(self, *, calls_program: bool = True) -> _Spending:
        """Return a context to put around the work of an audit, which measures what it costs.

        Args:
            calls_program: its code runs in there, and may leave cycles with large tensors in them. If not, Python does
                not look for any meanwhile: of a model of a thousand parameters thousands of samples are taken, and to
                look through all objects of a process takes a tenth of a second each time.
        """
        return _Spending(self, calls_program=calls_program)

    def spent(self, began: float) -> None:
        """Add the time since `began` to what audits have cost: an audit, or a part of one, is over."""
        self._spent_s += self.now() - began

    def _has_time(self) -> bool:
        now = self.now()
        if self._began is None:
            self._began = now
        return self._spent_s < max(FREE_S, SHARE * (now - self._began))


class _Spending:
    """The context of one audit. It is entered at every step and so no generator, which costs three times as much."""

    __slots__ = ("_audits", "_began", "_calls_program", "_collects")

    def __init__(self, audits: Audits, *, calls_program: bool) -> None:
        self._audits, self._calls_program = audits, calls_program

    def __enter__(self) -> None:
        self._began = self._audits.now()
        self._collects = not self._calls_program and gc.isenabled()
        if self._collects:
            gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._collects:
            gc.enable()
        self._audits.spent(self._began)


@contextlib.contextmanager
def uncollected() -> Generator[None, None, None]:
    """Around one micro-batch that is done again: Python looks for cycles after it, when all that was kept is gone."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
