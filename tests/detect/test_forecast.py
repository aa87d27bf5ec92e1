"""Forecasts on synthetic curves: the real step lies in the interval; where growth is not certain, nothing is said."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypocenter.detect.forecast import MIN_POINTS, Forecast, forecast
from hypocenter.detect.peaks import MOST_POINTS, Peaks
from hypocenter.nouns import Reading, Summary

LIMIT = math.log2(65504.0)
Curve = Callable[[np.ndarray], np.ndarray]


def overflow_step(log2: np.ndarray) -> int:
    """The first step that is not representable; the curve must have one."""
    return int(np.flatnonzero(log2 >= LIMIT)[0])


def seen(log2: np.ndarray, n: int) -> Forecast | None:
    return forecast(list(enumerate(log2[:n].tolist())), LIMIT)


def grown(curve: Curve, noise: float, seed: int = 0, n: int = 2000) -> np.ndarray:
    return curve(np.arange(float(n))) + np.random.default_rng(seed).normal(0.0, noise, n)


def exponential(doubling: float) -> Curve:
    return lambda t: 9.0 + t / doubling


def power(p: float, start: float = 500.0, speed: float = 1.0) -> Curve:
    return lambda t: np.log2(start + (speed * t) ** p)


@settings(deadline=None, max_examples=60)
@given(st.floats(8.0, 60.0), st.floats(0.0, 0.15), st.integers(0, 10**6), st.floats(0.3, 0.7))
def test_exponential_growth_overflows_inside_the_interval(pace: float, noise: float, seed: int, part: float) -> None:
    log2 = grown(exponential(pace), noise, seed)
    truth = overflow_step(log2)
    n = int(truth * part)

    found = seen(log2, n)

    if found is not None:  # 95 % of slopes: the far end and the scatter add to it
        assert found.step + found.near_steps - 0.15 * (truth - n) - 1 <= truth <= found.step + found.far_steps
    else:
        assert n < 2 * MIN_POINTS or pace * 4 > n or noise > 0.05, "clean growth over 4 doublings is evidence"


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_growth_by_a_power_of_the_step_overflows_inside_the_interval(p: float, noise: float) -> None:
    curve = power(p, speed={1.0: 300.0, 1.5: 20.0, 2.0: 2.0, 3.0: 0.5}[p])
    found_any = False
    for seed in range(10):
        log2 = grown(curve, noise, seed)
        truth = overflow_step(log2)
        for part in (0.4, 0.5, 0.6, 0.7):
            found = seen(log2, int(truth * part))
            if found is not None:
                found_any = True
                assert found.step + found.near_steps <= truth <= found.step + found.far_steps, (seed, part)
    assert found_any


def test_a_late_start_is_seen_although_most_of_the_history_is_flat() -> None:
    log2 = np.concatenate([np.full(400, 9.0), 9.0 + np.arange(200) / 20]) + np.random.default_rng(0).normal(
        0, 0.05, 600
    )
    truth = overflow_step(log2)

    found = seen(log2, 480)

    assert found is not None
    assert found.since_step > 300
    assert found.step + found.near_steps <= truth <= found.step + found.far_steps


def test_the_pace_is_told_in_doublings() -> None:
    found = seen(grown(exponential(25.0), 0.0), 100)

    assert found is not None
    assert found.doubling_steps == pytest.approx(25.0, rel=1e-6)
    assert found.likely_steps == pytest.approx((LIMIT - (9.0 + 99 / 25)) * 25, rel=1e-6)
    assert (found.step, found.since_step, found.n_points, found.span_steps) == (99, 0, 100, 99)


@settings(deadline=None, max_examples=60)
@given(st.floats(8.0, 15.9), st.floats(0.0, 1.5), st.integers(0, 10**6), st.integers(MIN_POINTS, 300))
def test_noise_around_a_level_says_nothing(level: float, noise: float, seed: int, n: int) -> None:
    log2 = np.minimum(level + np.random.default_rng(seed).normal(0.0, noise, n), LIMIT - 0.01)

    assert forecast(list(enumerate(log2.tolist())), LIMIT) is None


@settings(deadline=None, max_examples=40)
@given(st.integers(10, 290), st.floats(0.0, 0.3), st.integers(0, 10**6), st.floats(1.0, 6.0))
def test_a_jump_is_no_trend(at: int, noise: float, seed: int, height: float) -> None:
    t = np.arange(300)
    log2 = np.where(t < at, 9.0, 9.0 + height) + np.random.default_rng(seed).normal(0.0, noise, 300)

    for n in range(MIN_POINTS, 301, 12):
        assert seen(log2, n) is None


@settings(deadline=None, max_examples=30)
@given(st.integers(30, 120), st.floats(0.0, 0.1), st.integers(0, 10**6), st.floats(1.0, 4.0))
def test_a_sawtooth_that_has_fallen_once_is_no_trend(period: int, noise: float, seed: int, height: float) -> None:
    t = np.arange(6 * period)
    log2 = 11.0 + height * (t % period) / period + np.random.default_rng(seed).normal(0.0, noise, t.size)

    for n in range(2 * period, t.size, 16):  # the peak of a tooth is known from then on
        assert seen(log2, n) is None


@settings(deadline=None, max_examples=20)
@given(st.floats(40.0, 120.0), st.floats(2.0, 6.0), st.floats(2.0, 4.0), st.integers(0, 10**6))
def test_growth_that_saturates_is_never_said_to_overflow_soon(tau: float, rise: float, left: float, seed: int) -> None:
    t = np.arange(int(6 * tau))
    log2 = LIMIT - left - rise * np.exp(-t / tau) + np.random.default_rng(seed).normal(0.0, 0.05, t.size)

    for n in range(MIN_POINTS, t.size, 16):
        found = seen(log2, n)
        assert found is None or LIMIT - log2[n - 1] > 5.0 or found.likely_steps > found.span_steps


def test_random_walks_are_seldom_taken_for_growth() -> None:
    n_told = 0
    for seed in range(100):
        log2 = 12.0 + np.cumsum(np.random.default_rng(seed).normal(0.0, 0.1, 300))
        end = next((i for i, y in enumerate(log2) if y >= LIMIT), 300)
        found = [seen(log2, n) for n in range(MIN_POINTS, end, 16)]
        n_told += any(f is not None and f.likely_steps <= f.span_steps for f in found)

    assert n_told <= 15  # a walk that rises for 100 steps is growth while it does


def test_growth_that_is_over_says_nothing() -> None:
    log2 = np.concatenate([9.0 + np.arange(100) / 20, np.full(100, 14.0)])

    assert seen(log2, 190) is None


@pytest.mark.parametrize("n", [0, 1, MIN_POINTS - 1])
def test_few_points_say_nothing(n: int) -> None:
    assert seen(grown(exponential(3.0), 0.0), n) is None


def test_what_has_overflowed_already_is_not_forecast() -> None:
    assert forecast([(i, 10.0 + i / 10) for i in range(61)], LIMIT) is None


def test_sparse_and_shuffled_steps_give_the_same_forecast() -> None:
    points = [(100 * i, 9.0 + i / 10) for i in range(50)]

    found, shuffled = forecast(points, LIMIT), forecast(points[::-1], LIMIT)

    assert found == shuffled
    assert found is not None
    assert found.doubling_steps == pytest.approx(1000.0)


def row(step: int, absmax: float, **more: object) -> Reading:
    given = {"phase": "forward", "site": "a", "port": "out[0]", "dtype": "float16"} | more
    return Reading(step=step, microbatch=0, order=0, summary=Summary(n=1, absmax=absmax), **given)  # type: ignore[arg-type]


def test_peaks_keep_a_long_history_in_bounded_memory() -> None:
    peaks = Peaks()

    for step in range(10_000):
        peaks.add(row(step, 300.0 + step % 7))

    points = peaks.of(row(0, 1.0))
    assert len(points) <= MOST_POINTS
    assert points[0][0] < 100
    assert points[-1][0] > 9_900
    assert max(y for _, y in points) == math.log2(306.0)


def test_peaks_tell_operators_and_phases_apart_and_leave_out_what_is_far_from_its_limit() -> None:
    peaks = Peaks()

    for reading in (row(0, 300.0), row(0, 400.0, op="aten.mm.default"), row(0, 500.0, phase="backward"),
                    row(0, 200.0, site="b"), row(0, 65504.0, site="c"), row(0, 300.0, site="d", dtype="bfloat16"),
                    row(0, 300.0, site="e", replay=True), row(0, 300.0, site="f", recompute=True)):  # fmt: skip
        peaks.add(reading)

    assert peaks.of(row(1, 1.0)) == [(0, math.log2(300.0))]
    assert peaks.of(row(1, 1.0, op="aten.mm.default")) == [(0, math.log2(400.0))]
    assert [
        peaks.of(row(1, 1.0, site=s, dtype=d))
        for s, d in zip("bcdef", ["float16"] * 2 + ["bfloat16"] + ["float16"] * 2, strict=True)
    ] == [[]] * 5
