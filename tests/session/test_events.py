"""An observer hears of what it asked for, as long as it asked for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypocenter.session.events import Observer, Observers, Update


class Notes(Observer[Any]):
    """What it was told of."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.told: list[tuple[str, int]] = []

    def before_update(self, update: Update) -> None:
        self.told.append(("before", update.step))

    def after_update(self, update: Update) -> None:
        self.told.append(("after", update.step))

    def at_end(self) -> None:
        self.told.append(("end", -1))


class Early(Notes):
    until = 1


def told(kind: type[Notes], n_steps: int) -> list[tuple[str, int]]:
    made: list[Notes] = []

    def make(context: Any) -> Notes:
        made.append(kind(context))
        return made[0]

    observers = Observers([make], SimpleNamespace(rank=lambda: (0, 1), config=None), print)
    for step in range(n_steps):
        update: Any = SimpleNamespace(step=step, scaled=None, rows=[])
        observers.before_update(update)
        observers.after_update(update)
    observers.at_end()
    return made[0].told


def test_it_is_told_of_every_step():
    assert told(Notes, 3) == [(when, step) for step in range(3) for when in ("before", "after")] + [("end", -1)]


def test_it_is_told_until_the_step_that_it_names_and_of_the_end():
    assert told(Early, 4) == [("before", 0), ("after", 0), ("before", 1), ("after", 1), ("end", -1)]


def test_a_run_that_goes_on_later_tells_it_of_the_end_only():
    assert told(Early, 0) == [("end", -1)]
