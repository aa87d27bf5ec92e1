"""Errors of autocorrelated means against simulation and against known tables."""

from __future__ import annotations

import numpy as np
import pytest
from made_curves import noise

from hypocenter.compare.curves import statistics


@pytest.mark.parametrize(
    ("chance", "freedom", "expected"),
    [(0.05, 1, 12.706), (0.05, 10, 2.228), (0.001, 5, 6.869), (0.001, 120, 3.373), (0.0001, 30, 4.482)],
)
def test_t_quantiles_are_those_of_the_tables(chance: float, freedom: float, expected: float) -> None:
    assert statistics.t_quantile(chance, freedom) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.9])
def test_the_error_of_a_mean_is_what_repeats_scatter_by(memory: float) -> None:
    rows = noise(3, 300, 800, memory, 1.0)

    scatter = rows.mean(axis=1).std()
    errors = [statistics.mean_of(row).error for row in rows]

    assert np.mean(errors) == pytest.approx(scatter, rel=0.2)


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.9, 0.97])
def test_a_mean_of_noise_is_seldom_called_different_from_zero(memory: float) -> None:
    estimates = [statistics.mean_of(row) for row in noise(4, 400, 300, memory, 1.0)]

    wrong = np.mean([abs(one.value) > one.beyond(0.01) for one in estimates])

    assert wrong <= 0.03


@pytest.mark.parametrize("memory", [0.0, 0.9])
def test_a_slope_of_noise_is_seldom_called_one_and_a_true_one_is_found(memory: float) -> None:
    at = np.arange(300.0)
    rows = noise(5, 200, 300, memory, 1.0)

    wrong = [abs(e.value) > e.beyond(0.01) for e in (statistics.slope_of(at, row) for row in rows)]
    found = [abs(e.value) > e.beyond(0.01) for e in (statistics.slope_of(at, row + 0.05 * at) for row in rows)]

    assert np.mean(wrong) <= 0.03
    assert np.mean(found) >= 0.95


@pytest.mark.parametrize(("memory", "expected"), [(0.0, 1.0), (0.5, 3.0), (0.9, 19.0)])
def test_memory_is_the_autocorrelation_time(memory: float, expected: float) -> None:
    times = [statistics.memory_of(row) for row in noise(6, 30, 4000, memory, 1.0)]

    assert np.mean(times) == pytest.approx(expected, rel=0.25)


def test_what_cannot_be_estimated_is_infinite_not_an_exception() -> None:
    for values in (np.zeros(0), np.ones(1), np.ones(50)):
        assert statistics.memory_of(values) == 1.0
        assert statistics.mean_of(values).value in (0.0, 1.0)
    assert np.isinf(statistics.slope_of(np.ones(5), np.ones(5)).error)


def test_a_change_point_is_where_the_mean_changes() -> None:
    values = np.r_[np.zeros(30), np.ones(20)] + noise(7, 1, 50, 0.0, 0.1)[0]

    assert statistics.change_point(values) == 30


def test_running_median_and_mean_are_what_they_say() -> None:
    values = np.random.default_rng(8).normal(size=200)

    median = statistics.running_median(values, 11)
    mean = statistics.running_mean(values, 11)

    assert median[100] == np.median(values[95:106])
    assert mean[100] == pytest.approx(values[100:111].mean())
    assert len(median) == 200
    assert len(mean) == 190
