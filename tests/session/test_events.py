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


class Resting(Notes):
    def at_rest(self) -> tuple[str, ...]:
        return ("before_update",)


PARAMETERS, OTHERS = (SimpleNamespace(ids=frozenset(ids)) for ids in ((1, 2), (3,)))


def told(kind: type[Notes], n_steps: int, *, audited: int = -1, **changes: dict[int, Any]) -> list[tuple[str, int]]:
    """What an observer is told in so many updates.

    Args:
        changes: of the updates from a step on, of what is as ever otherwise.
    """
    made: list[Notes] = []

    def make(context: Any) -> Notes:
        made.append(kind(context))
        return made[0]

    audits = SimpleNamespace(is_due=lambda step: step == audited)
    observers = Observers([make], SimpleNamespace(rank=lambda: (0, 1), config=None, names=None, audits=audits), print)
    healthy = SimpleNamespace(is_finite=True)
    known: dict[str, Any] = {"parameters": PARAMETERS, "microbatches": [0], "check": healthy, "scaled": None}
    for step in range(n_steps):
        known.update({name: at[step] for name, at in changes.items() if step in at})
        update: Any = SimpleNamespace(step=step, rows=[], **known)
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


def heard(n_steps: int, audited: int = -1, **changes: dict[int, Any]) -> list[int]:
    """The steps from the 64th on before whose updates an observer is told that is at rest."""
    return [n for when, n in told(Resting, n_steps, audited=audited, **changes) if when == "before" and n >= 64]


def test_one_that_rests_is_told_now_and_then():
    assert heard(140) == [64, 96, 128]
    assert [n for when, n in told(Resting, 140) if when == "after"] == [*range(140)]
    assert [n for when, n in told(Resting, 64) if when == "before"] == [*range(64)]
    assert heard(1025)[-3:] == [992, 1000, 1024]


def test_it_is_told_of_what_is_new():
    bad = SimpleNamespace(is_finite=False)

    assert heard(80, parameters={70: OTHERS}) == [64, 70]
    assert heard(80, microbatches={70: [0, 1]}) == [64, 70]
    assert heard(80, audited=70) == [64, 70]
    assert heard(72, parameters={70: [1, 2]}) == [64, 70, 71]  # which are made anew each time, as far as is known
    assert heard(72, check={70: bad}) == [64, 70, 71]
    assert heard(72, scaled={70: object()}) == [64, 70, 71]
