"""Which steps are audited."""

from __future__ import annotations

import contextlib
import gc

import pytest

from hypocenter.session.audits import AT_ONCE, FREE_S, SHARE, WHOLE, Audits


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def audited(audits: Audits, clock: Clock, n_steps: int, step_s: float, cost_s: float) -> list[int]:
    found: list[int] = []
    for step in range(n_steps):
        if audits.is_due(step):
            found.append(step)
            with audits.spending():
                clock.now += cost_s
        clock.now += step_s
    return found


def test_a_small_program_is_audited_at_every_step() -> None:
    clock = Clock()

    assert audited(Audits("auto", clock), clock, 60, 0.005, 0.01) == list(range(60))


def test_a_large_one_at_few_and_within_the_share() -> None:
    clock = Clock()

    found = audited(Audits("auto", clock), clock, 5000, 1.0, 2.0)

    assert {0, 1, 2, 4, 8, 512, 1000, 4000} <= set(found)
    extra = [step for step in found if step & (step - 1) and step % 1000]
    assert 2.0 * len(extra) <= FREE_S + SHARE * (clock.now - 100.0) + 2.0
    assert len(found) > 10


def test_a_decision_stays_whoever_asks() -> None:
    clock = Clock()
    audits = Audits("auto", clock)

    assert audits.is_due(3)
    with audits.spending():
        clock.now += 50.0

    assert audits.is_due(3)
    assert not audits.is_due(5)


def test_a_schedule_is_kept_to_whatever_it_costs() -> None:
    clock = Clock()

    assert audited(Audits("every=3", clock), clock, 10, 0.1, 60.0) == [0, 3, 6, 9]
    assert audited(Audits("never", clock), clock, 10, 0.1, 60.0) == []


def test_nothing_is_audited_after_stop() -> None:
    audits = Audits("auto", Clock())
    assert audits.is_due(1)

    audits.stop()

    assert not audits.is_due(1)
    assert not audits.is_due(2)


@pytest.mark.parametrize("is_on", [True, False])
def test_garbage_is_left_while_none_of_the_programs_code_runs(is_on: bool) -> None:
    audits, seen = Audits("auto"), list[bool]()
    (gc.enable if is_on else gc.disable)()
    try:
        for calls_program in (True, False):
            with audits.spending(calls_program=calls_program):
                seen.append(gc.isenabled())
        with contextlib.suppress(KeyError), audits.spending(calls_program=False):
            raise KeyError
        seen.append(gc.isenabled())
    finally:
        gc.enable()

    assert seen == [is_on, False, is_on]


def test_most_models_are_looked_at_whole_and_large_ones_in_turn() -> None:
    audits, parameters = Audits("every=3"), [*range(1000)]
    parts = dict[int, list[int]]()
    for step in range(0, 96, 3):
        assert audits.is_due(step)
        parts[step] = parameters[audits.part(step, len(parameters))]
        assert parameters[:AT_ONCE][audits.part(step, AT_ONCE)] == parameters[:AT_ONCE]

    assert all(parts[step] == parameters for step in range(0, 3 * WHOLE, 3))
    in_turn = [parts[step] for step in range(3 * WHOLE, 3 * WHOLE + 12, 3)]
    assert {len(each) for each in in_turn} == {250}
    assert sorted(each for part in in_turn for each in part) == parameters


def test_at_the_steps_of_the_default_schedule_large_ones_are_looked_at_whole() -> None:
    audits = Audits("every=1")
    whole = [step for step in range(70) if audits.is_due(step) and audits.part(step, 3000) == slice(None)]

    assert whole == [*range(WHOLE), 8, 16, 32, 64]
