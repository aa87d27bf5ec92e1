"""Bounds of what a cast loses, against casting every element of real tensors."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hypocenter.errors import ConfigError
from hypocenter.formats import FORMATS
from hypocenter.nouns import Summary, replace
from hypocenter.summary.casting import Bounds, n_flushed
from hypocenter.summary.histogram import overflow_fraction
from hypocenter.summary.reducers.numpy import summarize

TARGETS = {
    "float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32,
    "float8_e4m3fn": torch.float8_e4m3fn, "float8_e5m2": torch.float8_e5m2,
}  # fmt: skip
SHORT = 12  # bits of significand in the values; a scale has at most 8: their product is exact in float32


def cast(x: np.ndarray, name: str, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """The scaled values, exactly, and what the format makes of them (torch; NumPy for float16)."""
    scaled = x * scale
    if name == "float16":
        with np.errstate(over="ignore"):
            return scaled, scaled.astype(np.float16).astype(np.float64)
    return scaled, torch.from_numpy(scaled).to(TARGETS[name]).to(torch.float64).numpy()


def n_zeroed(x: np.ndarray, name: str, scale: float) -> int:
    """What becomes zero, by casting."""
    scaled, done = cast(x, name, scale)
    return int(((done == 0) & (scaled != 0)).sum())


def edge(name: str) -> list[float]:
    """Magnitudes where a format's rounding changes its mind, and their neighbours of SHORT bits."""
    form = FORMATS[name]
    exact = [form.max, float(form.overflows_from), float(form.flushes_to), form.smallest_subnormal]
    exact += [form.smallest_normal, 2.0 ** (form.largest_exponent + 1), 2.0**form.largest_exponent]
    return [value * (1 + step * 2.0**-11) for value in exact for step in (-1, 0, 1)]


@st.composite
def cases(draw: st.DrawFn) -> tuple[np.ndarray, str, int]:
    """Values of SHORT bits around a format's range or on its limits, divided by a power of two that is then applied."""
    name = draw(st.sampled_from(sorted(TARGETS)))
    form, power = FORMATS[name], draw(st.integers(-20, 20))
    low, high = form.smallest_exponent - form.fraction_bits - 3, form.largest_exponent + 2
    free = st.builds(
        lambda bits, e: bits * 2.0 ** (e - SHORT + 1), st.integers(2**11, 2**12 - 1), st.integers(low, high)
    )
    magnitude = st.sampled_from(edge(name)) | free | st.just(0.0)
    values = draw(st.lists(st.builds(lambda m, s: s * m, magnitude, st.sampled_from([1.0, -1.0])), max_size=30))
    return np.array(values, np.float64) * 2.0**-power, name, power


@settings(deadline=None, max_examples=400)
@given(cases(), st.sampled_from([1.0, 0.5, 8.0, 0.75, 3.0, 5.0, 127.0, 2.0**-9]))
def test_the_bounds_hold_at_every_scale(case: tuple[np.ndarray, str, int], off: float) -> None:
    x, name, power = case
    scale = 2.0**power * off

    assert n_zeroed(x, name, scale) in n_flushed(summarize(x), name, scale)


@settings(deadline=None, max_examples=400)
@given(cases())
def test_counts_are_exact_at_octave_resolution(case: tuple[np.ndarray, str, int]) -> None:
    x, name, power = case
    form, scale = FORMATS[name], 2.0**power
    magnitude = [Fraction(abs(v)) * Fraction(2) ** power for v in x if v]

    found, truth = n_flushed(summarize(x), name, scale), n_zeroed(x, name, scale)

    beyond = truth - sum(m == form.flushes_to for m in magnitude)
    assert beyond <= found.least <= truth, "only values exactly on the limit are in doubt"
    assert beyond == sum(m < form.flushes_to for m in magnitude)


@settings(deadline=None, max_examples=200)
@given(cases(), st.floats(2.0**-10, 2.0**10))
def test_zero_and_all_are_told_exactly_at_any_scale(case: tuple[np.ndarray, str, int], off: float) -> None:
    x, name, power = case
    scale, form = 2.0**power * off, FORMATS[name]
    magnitude = [Fraction(abs(v)) * Fraction(scale) for v in x if v]
    n = sum(m <= form.flushes_to for m in magnitude)

    found = n_flushed(summarize(x), name, scale)

    assert n in found
    assert (n == 0) == (found.most == 0)
    assert (n == len(magnitude)) == (found.least == len(magnitude))


@pytest.mark.parametrize("name", sorted(TARGETS))
@pytest.mark.parametrize("power", [-8, 0, 16])
def test_a_real_gradient_without_values_on_a_limit_is_exact(name: str, power: int) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 8))
    layer(torch.randn(16, 32)).square().mean().backward()
    x = torch.cat([p.grad.reshape(-1) for p in layer.parameters()]).double().numpy()
    spread = np.concatenate([x, x * FORMATS[name].smallest_subnormal * 8, x * FORMATS[name].max * 2.0**6]) * 2.0**-power

    found, truth = n_flushed(summarize(spread), name, 2.0**power), n_zeroed(spread, name, 2.0**power)

    assert truth > 0
    assert found.least == truth, "no value lies exactly on the limit"
    assert truth in found


@pytest.mark.parametrize(
    ("name", "fits", "does_not"),
    [
        ("float16", 65519.99, 65520.0),
        ("float8_e5m2", 61439.99, 61440.0),
        ("float8_e4m3fn", 464.0, 464.0001),
        (
            "bfloat16",
            float(FORMATS["bfloat16"].overflows_from) * (1 - 2.0**-20),
            float(FORMATS["bfloat16"].overflows_from),
        ),
    ],
)
def test_the_tie_at_the_overflow_threshold(name: str, fits: float, does_not: float) -> None:
    largest = FORMATS[name].max

    assert cast(np.array([fits]), name, 1.0)[1].tolist() == [largest]
    assert overflow_fraction(summarize(np.array([fits, 1.0])), name) == 0.0
    assert overflow_fraction(summarize(np.array([does_not, 1.0])), name) == 0.5


def test_float8_e4m3fn_has_no_infinity() -> None:
    done = cast(np.array([1000.0]), "float8_e4m3fn", 1.0)[1]

    assert np.isnan(done).all() or done.tolist() == [448.0]  # OFP8, table 3: both modes exist; torch has had both
    assert np.isinf(cast(np.array([1e6]), "float8_e5m2", 1.0)[1]).all()


def test_a_subnormal_survives_and_half_of_it_does_not() -> None:
    x = np.array([2.0**-24, 2.0**-25, 2.0**-25 * (1 + 2.0**-11)])

    assert cast(x, "float16", 1.0)[1].tolist() == [2.0**-24, 0.0, 2.0**-24]
    assert n_flushed(summarize(x), "float16") == Bounds(least=1, most=2)  # which of them is exactly on it is not known
    assert n_flushed(summarize(x[1:2]), "float16") == Bounds(least=1, most=1)


def test_a_sample_bounds_what_it_saw() -> None:
    x = np.concatenate([np.full(4096, 1.0), np.array([1e6])])

    sampled = summarize(x, histogram="sample")

    assert overflow_fraction(sampled, "float16") == pytest.approx(1 / 4097)


@example(0.0)
@example(float("inf"))
@given(st.floats(max_value=0.0) | st.just(float("nan")))
def test_an_impossible_scale_is_refused(scale: float) -> None:
    with pytest.raises(ConfigError, match="loss scale"):
        n_flushed(replace(Summary(), n=1), "float16", scale)
