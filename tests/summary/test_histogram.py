"""What-ifs against casting every value with torch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hypocenter.errors import ConfigError
from hypocenter.formats import find_format
from hypocenter.nouns import Summary
from hypocenter.summary.histogram import overflow_fraction, subnormal_fraction, underflow_fraction, zero_fraction
from hypocenter.summary.reducers.numpy import summarize

TARGETS = {
    "float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32,
    "float8_e4m3fn": torch.float8_e4m3fn, "float8_e5m2": torch.float8_e5m2,
}  # fmt: skip
POWERS = [2.0**-20, 0.5, 1.0, 128.0, 65536.0]
OTHERS = [1000.0, 0.3, 65000.0, 3.0]


def log_spread(seed: int, low: float, high: float, n: int = 4000) -> np.ndarray:
    """Values of both signs, evenly spread in log2|x|, and zeros; no power of two among them."""
    rng = np.random.default_rng(seed)
    x = rng.choice([-1.0, 1.0], n) * 2.0 ** rng.uniform(low, high, n)
    x[rng.random(n) < 0.1] = 0.0
    return x


def brute(x: np.ndarray, name: str, scale: float) -> dict[str, float]:
    """Fractions by casting; float8_e4m3fn overflows by rule: torch saturates it in some versions only."""
    scaled = torch.from_numpy(x * scale)
    cast = scaled.to(TARGETS[name]).to(torch.float64)
    overflowed = scaled.abs() > 464.0 if name == "float8_e4m3fn" else cast.isinf()
    tiny = torch.finfo(TARGETS[name]).smallest_normal
    return {
        "overflow": float(overflowed.double().mean()),
        "underflow": float(((cast == 0) & (scaled != 0)).double().mean()),
        "subnormal": float(((cast != 0) & (scaled.abs() < tiny)).double().mean()),
        "zero": float((scaled == 0).double().mean()),
    }


def answers(summary: Summary, name: str, scale: float) -> dict[str, float]:
    return {
        "overflow": overflow_fraction(summary, name, scale),
        "underflow": underflow_fraction(summary, name, scale),
        "subnormal": subnormal_fraction(summary, name, scale),
        "zero": zero_fraction(summary),
    }


RANGES = {
    "float16": (-30, 20), "bfloat16": (-140, 130), "float32": (-155, 130), "float8_e4m3fn": (-14, 12),
    "float8_e5m2": (-20, 18),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(TARGETS))
@pytest.mark.parametrize("scale", POWERS)
def test_powers_of_two_are_exact(name: str, scale: float) -> None:
    x = log_spread(1, *RANGES[name]) / scale

    found, expected = answers(summarize(x), name, scale), brute(x, name, scale)

    one_bin = max(summarize(x).hist) / x.size
    for kind in ("underflow", "subnormal", "zero"):
        assert found[kind] == pytest.approx(expected[kind], abs=1e-12), kind
    assert found["overflow"] == pytest.approx(expected["overflow"], abs=one_bin)
    assert all(expected.values()), "the case must exercise all four"


@pytest.mark.parametrize("name", sorted(TARGETS))
@pytest.mark.parametrize("scale", OTHERS)
@pytest.mark.parametrize("seed", range(3))
def test_any_other_scale_is_within_a_bin(name: str, scale: float, seed: int) -> None:
    x = log_spread(seed, *RANGES[name]) / scale
    summary = summarize(x)

    found, expected = answers(summary, name, scale), brute(x, name, scale)

    one_bin = max(summary.hist) / x.size
    for kind, actual in found.items():
        assert actual == pytest.approx(expected[kind], abs=2 * one_bin if kind == "subnormal" else one_bin), kind


@settings(deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(sorted(TARGETS)), st.floats(1e-6, 1e6), st.integers(-20, 16))
def test_nothing_is_said_to_overflow_or_vanish_that_does_not(seed: int, name: str, scale: float, high: int) -> None:
    x = log_spread(seed, high - 12, high, n=50)
    summary = summarize(x)

    found, expected = answers(summary, name, scale), brute(x, name, scale)

    assert (found["overflow"] > 0) == (expected["overflow"] > 0)
    assert (found["underflow"] > 0) == (expected["underflow"] > 0)


@pytest.mark.parametrize(
    ("name", "largest_that_fits", "smallest_that_does_not"),
    [("float16", 65519.99, 65520.0), ("float8_e4m3fn", 464.0, 464.0001), ("float8_e5m2", 61439.9, 61440.0)],
)
def test_the_limit_of_rounding_decides(name: str, largest_that_fits: float, smallest_that_does_not: float) -> None:
    assert overflow_fraction(summarize(np.array([1.0, largest_that_fits])), name) == 0.0
    assert overflow_fraction(summarize(np.array([1.0, smallest_that_does_not])), name) == 0.5


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_half_the_smallest_subnormal_becomes_zero(name: str) -> None:
    half = find_format(name).smallest_subnormal / 2

    assert underflow_fraction(summarize(np.array([half])), name) == 1.0
    assert underflow_fraction(summarize(np.array([half * (1 + 2**-40)])), name) == 0.0


@pytest.mark.parametrize("array", [np.array([]), np.zeros(3), np.array([np.nan, np.inf])])
def test_nothing_to_lose_loses_nothing(array: np.ndarray) -> None:
    found = answers(summarize(array), "float16", 2.0**24)

    assert (found["overflow"], found["underflow"], found["subnormal"]) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan])
def test_an_impossible_scale_is_refused(scale: float) -> None:
    with pytest.raises(ConfigError, match="loss scale"):
        overflow_fraction(summarize(np.ones(2)), "float16", scale)


def test_extreme_scales_stay_exact() -> None:
    summary = summarize(np.array([5e-324, 1e308]))

    assert underflow_fraction(summary, "float64", 0.5) == 0.5
    assert overflow_fraction(summary, "float64", 2.0) == 0.5
    assert underflow_fraction(summarize(np.array([5e-324, 1e200])), "float32", 2.0**-1074) == 1.0
