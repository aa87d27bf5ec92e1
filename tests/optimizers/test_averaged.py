"""Averages of gradients and of their squares fit where both keep as much as they take in, or take in the same scale."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypocenter.optimizers.averaged import unlike
from hypocenter.optimizers.fitted import Moved

BETA = st.floats(0.5, 0.99)


def moved(mean: tuple[float, float], square: tuple[float, float], seed: int, noise: float = 0.0) -> list[Moved]:
    """One step of two parameters, with (kept, taken) of each average."""
    chance, found = np.random.default_rng(seed), []
    for n in (24, 40):
        g, m, v, rest = chance.normal(size=(4, n))
        new = {"m": mean[0] * m + mean[1] * g + noise * rest, "v": square[0] * v**2 + square[1] * g**2}
        found.append(Moved(value=g, gradient=g, state={"m": m, "v": v**2}, after=g, new=new, eps=1e-7))
    return found


@given(a=BETA, b=BETA, seed=st.integers(0, 99))
def test_averages_fit(a: float, b: float, seed: int) -> None:
    assert unlike(moved((a, 1 - a), (b, 1 - b), seed)) is None


@given(a=BETA, b=BETA, taken=st.floats(0.001, 0.9), seed=st.integers(0, 99))
def test_squares_that_are_taken_in_otherwise_do_not(a: float, b: float, taken: float, seed: int) -> None:
    found = unlike(moved((a, 1 - a), (b, taken), seed))

    if abs(taken - (1 - b)) < 0.09 * (1 - b):
        assert found is None
    elif abs(taken - (1 - b)) > 0.11 * (1 - b):
        assert found is not None
        assert (found.kept, found.taken) == pytest.approx((b, taken))


@given(a=BETA, b=BETA, scale=st.floats(1e-3, 0.9), seed=st.integers(0, 99))
def test_a_gradient_that_is_scaled_for_both_is_left_alone(a: float, b: float, scale: float, seed: int) -> None:
    assert unlike(moved((a, (1 - a) * scale), (b, (1 - b) * scale**2), seed)) is None


@pytest.mark.parametrize(
    ("mean", "square"), [((0.9, 1.0), (0.99, 1.0)), ((0.9, 0.1), (1.0, 1.0)), ((0.9, 0.1), (0.9, 1.0))]
)
def test_sums_are_no_averages(mean: tuple[float, float], square: tuple[float, float]) -> None:
    assert unlike(moved(mean, square, 0)) is None


def test_what_is_no_such_sum_is_not_judged() -> None:
    assert unlike(moved((0.9, 0.1), (0.9, 0.5), 0, noise=0.1)) is None
