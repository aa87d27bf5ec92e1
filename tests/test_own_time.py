"""The clock of what a process has worked: never faster than the wall clock, never slower than an eighth of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypocenter import own_time
from hypocenter.own_time import OwnTime

SECONDS = st.floats(0.0, 1e3)


@pytest.mark.parametrize(
    ("passed_s", "worked_s", "counted_s"),
    [(4.0, 1.0, 1.0), (4.0, 30.0, 4.0), (4.0, 0.0, 0.5), (4.0, -9.0, 0.5)],
    ids=["others work too", "many threads", "it waits", "a fork"],
)
def test_what_counts(monkeypatch: pytest.MonkeyPatch, passed_s: float, worked_s: float, counted_s: float) -> None:
    clock = clock_of(monkeypatch, [(0.0, 0.0), (passed_s, worked_s)])

    assert clock.now() == pytest.approx(counted_s)


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=9))
def test_it_never_goes_back_and_keeps_within_its_bounds(steps: list[tuple[float, float]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        reads = [(0.0, 0.0)]
        for passed_s, worked_s in steps:
            reads.append((reads[-1][0] + passed_s, reads[-1][1] + worked_s))
        clock = clock_of(patch, reads)
        counted = [0.0, *(clock.now() for _ in steps)]

    for before_s, after_s, (passed_s, _) in zip(counted, counted[1:], steps, strict=False):
        assert passed_s / 8 - 1e-6 <= after_s - before_s <= passed_s + 1e-6


def clock_of(patch: pytest.MonkeyPatch, reads: list[tuple[float, float]]) -> OwnTime:
    walls, cpus = (iter([read[i] for read in reads]) for i in (0, 1))
    patch.setattr(own_time.time, "perf_counter", lambda: next(walls))
    patch.setattr(own_time.time, "process_time", lambda: next(cpus))
    return OwnTime()
