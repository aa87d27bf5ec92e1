"""A number of a run against its own past."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypocenter.detect.spikes import LEAST, Series


def jumps(values):
    series = Series()
    return [step for step, value in enumerate(values) if series.add(value) is not None]


def around(center, spread, n, seed=0):
    rng = random.Random(seed)
    return [center * math.exp(spread * rng.gauss(0, 1)) for _ in range(n)]


@pytest.mark.parametrize("factor", [4.0, 1e3, 1e12])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_value_far_above_the_others_is_a_jump_at_its_step(factor, sign):
    values = [sign * value for value in around(2.3, 0.05, 100)]
    values[60] *= factor

    series = Series()
    found = [(step, jump) for step, value in enumerate(values) if (jump := series.add(value)) is not None]

    ((step, jump),) = found
    assert step == 60
    assert jump.value == values[60]
    assert jump.usual == pytest.approx(2.3, rel=0.2)
    assert jump.usual < jump.limit < abs(jump.value)
    assert jump.octaves == pytest.approx(math.log2(factor), abs=0.5)


@pytest.mark.parametrize(("to", "is_within"), [(1.0, True), (5.0, False)])
def test_a_jump_is_told_from_one_to_where_the_run_began(to, is_within):
    values = [3.0 * value * 2 ** (-min(i, 64) / 8) for i, value in enumerate(around(1.0, 0.05, 200))]
    values[150] = to
    series = Series()

    (jump,) = [found for value in values if (found := series.add(value)) is not None]

    assert jump.value == to
    assert jump.began == pytest.approx(2.5, rel=0.3)
    assert (jump.within > 0.0) is is_within


@pytest.mark.parametrize(("to", "is_within"), [(60.0, True), (200.0, False)])
def test_a_jump_is_told_from_one_that_came_before(to, is_within):
    values = around(1.0, 0.05, 5000)
    values[100], values[4900] = 50.0, to
    series = Series()

    first, second = [found for value in values if (found := series.add(value)) is not None]

    assert (first.within, second.within) == (0.0, 50.0 if is_within else 0.0)


def test_a_value_far_above_a_trend_is_a_jump():
    values = [value * 2 ** (-i / 8) for i, value in enumerate(around(1.0, 0.3, 40))]
    values[33] = 100 * values[32]

    assert jumps(values) == [33]


def test_a_level_that_stays_is_one_jump():
    assert jumps([*around(1.0, 0.05, 100), *around(30.0, 0.05, 400, 1)]) == [100]


def test_two_jumps_are_two():
    values = around(1.0, 0.05, 300)
    values[100], values[250] = 50.0, 900.0

    assert jumps(values) == [100, 250]


@pytest.mark.parametrize(
    "make",
    [
        lambda i, r: 4 * math.exp(-i / 3000) + 1 + 0.1 * r.gauss(0, 1),
        lambda i, r: math.exp(-i / 500) * math.exp(0.3 * r.gauss(0, 1)),
        lambda i, r: 1 + (i % 500) / 50,  # a learning rate's restarts, seen in the norm
        lambda i, r: r.gauss(0, 1),  # crosses zero
        lambda i, r: r.random(),
        lambda i, r: 1e-6 + math.exp(-i / 50) * (1 + 0.3 * r.gauss(0, 1)),  # learns its task
        lambda i, r: min(1.0, i / 200) * (1 + 0.1 * r.gauss(0, 1)),  # warms up
        lambda i, r: 0.0,
    ],
)
def test_trends_and_noise_do_not_jump(make):
    rng = random.Random(0)

    assert len(jumps([make(i, rng) for i in range(1, 6000)])) <= 1


@pytest.mark.parametrize("alpha", [1.0, 1.5, 3.0])
def test_a_heavy_tail_jumps_rarely(alpha):
    rng = random.Random(0)

    assert len(jumps([rng.paretovariate(alpha) for _ in range(20_000)])) <= 10


def test_a_value_far_above_a_heavy_tail_is_a_jump():
    rng = random.Random(0)
    values = [rng.paretovariate(1.5) for _ in range(3000)]  # the largest of 10,000 is about 500
    values[2900] = 1e6

    assert 2900 in jumps(values)


def test_what_has_jumped_often_is_no_news_until_it_is_forgotten():
    values = around(1.0, 0.05, 20_000)
    for step in range(100, 4000, 200):
        values[step] = 20.0 + step % 3
    values[4100], values[4300], values[19_000] = 30.0, 1e12, 30.0

    found = jumps(values)

    assert len(found) <= 4
    assert found[-2:] == [4300, 19_000]


@given(st.lists(st.one_of(st.none(), st.floats()), max_size=200))
def test_any_values_are_taken(values):
    assert all(step >= LEAST for step in jumps(values))


@given(st.lists(st.floats(1e-3, 1e3), min_size=30, max_size=60), st.floats(2**-20, 2**20))
def test_it_knows_no_unit(values, unit):
    exact = 2.0 ** round(math.log2(unit))

    assert jumps(values) == jumps([exact * value for value in values])


@pytest.mark.parametrize(
    ("at", "value", "found"),
    [
        (30, 4.0, []),  # one micro-batch, divided by one: its mean is four times as large, the sum the same
        (30, 1.0, []),  # the same of a program that divides none
        (30, 40.0, [30]),
        (29, 4.0, [29]),  # of four micro-batches
    ],
)
def test_a_short_window_jumps_only_if_its_sum_does(at, value, found):
    values = around(1.0, 0.02, 60)
    values[at] *= value
    counts = [1 if step in (30, 45) else 4 for step in range(60)]
    series = Series()

    jumps = [step for step, each in enumerate(zip(values, counts, strict=True)) if series.add(*each) is not None]

    assert jumps == found


def test_shorter_windows_from_some_step_on_make_no_jump():
    for first, later in ((4, 1), (1, 4)):
        series = Series()
        values = around(1.0, 0.02, 120)

        assert not any(series.add(value, first if step < 60 else later) for step, value in enumerate(values))
