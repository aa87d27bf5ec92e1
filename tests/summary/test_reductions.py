"""Critical lengths against reductions that are really carried out in float16."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hypocenter.nouns import Summary
from hypocenter.summary.reducers.numpy import summarize
from hypocenter.summary.reductions import (
    critical_norm,
    critical_power,
    critical_product,
    critical_sum,
    mean_magnitude,
    rms,
)


def test_the_key_sum_of_a_linear_attention_overflows_from_6550_positions_on() -> None:
    found = critical_sum(summarize(np.full((8192, 4), 10.0)), "float16")

    assert (math.floor(found.size), found.bound, found.typical) == (6550, "expected", 10.0)
    assert torch.full((6550,), 10.0, dtype=torch.float16).sum().isfinite()
    assert torch.full((6552,), 10.0, dtype=torch.float16).sum().isinf()  # 65,520 is where rounding overflows


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 2**32 - 1), st.floats(1.0, 200.0), st.sampled_from([1.0, -1.0]))
def test_a_sum_of_one_sign_overflows_at_the_expected_length(seed: int, size: float, sign: float) -> None:
    x = sign * np.random.default_rng(seed).uniform(0.5, 1.5, 1000).astype(np.float16).astype(np.float64) * size

    found = critical_sum(summarize(x), "float16")

    for length, is_inf in ((found.size * 0.9, False), (found.size * 1.1, True)):
        terms = np.resize(x, int(length))
        with np.errstate(over="ignore"):
            assert math.isinf(float(np.float64(terms.sum()).astype(np.float16))) == is_inf
    assert found.bound == "expected"


@settings(deadline=None, max_examples=100)
@given(st.lists(st.floats(-1000, 1000, width=16), min_size=1, max_size=50))
def test_no_sum_shorter_than_the_bound_overflows_whatever_the_signs(values: list[float]) -> None:
    x = np.array(values)
    found = critical_sum(summarize(x), "float16")

    repeats = math.floor(found.size / len(values)) if found.size < 1e6 else 1

    if found.bound == "not before":
        assert abs(x.sum()) * repeats <= 65504.0 * (1 + 1e-9)
    assert found.size >= 65504.0 / max(np.abs(x).max(), 1e-30) * (1 - 1e-9)


@pytest.mark.parametrize("x", [np.array([-30.0, 40.0]), np.array([0.0, 300.0, -2.0])])
def test_a_norm_is_exact_whatever_the_signs(x: np.ndarray) -> None:
    found = critical_norm(summarize(x), "float16")

    below, above = int(found.size * 0.98), int(found.size * 1.02)
    assert np.sqrt(x.size * rms(summarize(x)) ** 2 * below / x.size) < 65504
    assert np.sqrt(np.square(np.resize(x, above)).sum()) > 65504
    assert found.bound == "exact"


def test_the_square_of_256_overflows_float16() -> None:
    found = critical_power(2.0, "float16")

    assert 255.9 < found.size < 256.0
    assert np.square(np.float16(found.size)).astype(np.float64) <= 65504


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32 - 1), st.floats(1.0, 60.0))
def test_scores_below_the_head_dimension_never_overflow(seed: int, size: float) -> None:
    rng = np.random.default_rng(seed)
    q, k = (rng.uniform(-size, size, (16, 4)) for _ in range(2))

    found = critical_product(summarize(q), summarize(k), "float16")

    worst = np.abs(q).max() * np.abs(k).max() * math.floor(found.size)
    assert worst <= 65504.0 * (1 + 1e-9)
    assert found.bound == "not before"


@pytest.mark.parametrize("summary", [Summary(), summarize(np.zeros(4)), summarize(np.array([np.nan, np.inf]))])
def test_nothing_grows_out_of_nothing(summary: Summary) -> None:
    assert critical_sum(summary, "float16").size == math.inf
    assert critical_norm(summary, "float16").size == math.inf
    assert rms(summary) == 0.0


def test_the_mean_magnitude_is_known_for_one_sign_only() -> None:
    assert mean_magnitude(summarize(np.array([1.0, 3.0, 0.0]))) == pytest.approx(4 / 3)
    assert mean_magnitude(summarize(np.array([-1.0, -3.0]))) == 2.0
    assert mean_magnitude(summarize(np.array([-1.0, 3.0]))) is None
