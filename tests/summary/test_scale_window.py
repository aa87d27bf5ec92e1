"""Windows of loss scales against casting every element at scales inside and outside."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hypocenter.errors import ConfigError
from hypocenter.formats import FORMATS
from hypocenter.nouns import Summary
from hypocenter.summary.casting import n_flushed
from hypocenter.summary.histogram import overflow_fraction
from hypocenter.summary.reducers.numpy import summarize
from hypocenter.summary.scale_window import ScaleWindow, intersection, scale_window

NAMES = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
TORCH = {name: getattr(torch, name) for name in NAMES}

significands = st.integers(2**11, 2**12 - 1)
values = st.builds(
    lambda b, e, s: s * b * 2.0 ** (e - 11), significands, st.integers(-30, 12), st.sampled_from([1, -1])
)
arrays = st.lists(values | st.just(0.0), max_size=20).map(lambda v: np.array(v, np.float64))


def n_lost(x: np.ndarray, name: str, scale: float) -> int:
    """Elements that a cast makes zero, not finite, or saturates; the products are exact in float32."""
    scaled, form = np.abs(x * scale), FORMATS[name]
    done = torch.from_numpy(scaled).to(TORCH[name]).double().numpy()
    with np.errstate(invalid="ignore"):
        saturated = scaled - done > 2.0 ** (form.largest_exponent - form.fraction_bits - 1)
    return int((((done == 0) & (x != 0)) | ~np.isfinite(done) | saturated).sum())


@settings(deadline=None, max_examples=400)
@given(arrays, st.sampled_from(NAMES), st.integers(-30, 40))
def test_a_power_of_two_is_inside_exactly_if_casting_loses_nothing(x: np.ndarray, name: str, power: int) -> None:
    window = scale_window(summarize(x), name)

    assert window.holds(2.0**power) == (n_lost(x, name, 2.0**power) == 0)
    assert window.holds_power(power) == window.holds(2.0**power)


@settings(deadline=None, max_examples=300)
@given(arrays.filter(lambda x: bool(x.any())), st.sampled_from(NAMES))
def test_the_sides_are_exact(x: np.ndarray, name: str) -> None:
    form, window = FORMATS[name], scale_window(summarize(x), name)
    small, large = Fraction(min(abs(v) for v in x if v)), Fraction(np.abs(x).max())

    assert window.above * small == form.flushes_to
    assert window.below is not None
    assert window.below * large == form.overflows_from
    inside = (window.above + window.below) / 2
    assert window.is_empty or (small * inside > form.flushes_to and large * inside < form.overflows_from)


@settings(deadline=None, max_examples=60)
@given(arrays.filter(lambda x: bool(x.any())), st.sampled_from(["float16", "float8_e4m3fn", "float8_e5m2"]))
def test_the_powers_at_the_ends_are_the_last_ones_inside(x: np.ndarray, name: str) -> None:
    window = scale_window(summarize(x), name)

    low, high = window.smallest_power, window.largest_power

    inside = [p for p in range(-80, 80) if n_lost(x, name, 2.0**p) == 0]
    assert (low, high) == ((inside[0], inside[-1]) if inside else (None, None))


@settings(deadline=None, max_examples=200)
@given(arrays, st.sampled_from(NAMES), st.integers(-8, 16))
def test_the_scale_that_the_values_carry_is_taken_out(x: np.ndarray, name: str, power: int) -> None:
    plain, scaled = scale_window(summarize(x), name), scale_window(summarize(x * 2.0**power), name, carried=2.0**power)

    assert (plain.above, plain.below) == (scaled.above, scaled.below)


@settings(deadline=None, max_examples=300)
@given(arrays.filter(lambda x: bool(x.any())), st.sampled_from(NAMES), st.sampled_from([0.01, 0.1, 0.3, 0.9]))
def test_a_share_may_be_lost_and_no_more(x: np.ndarray, name: str, share: float) -> None:
    summary, strict = summarize(x), scale_window(summarize(x), name)

    window = scale_window(summary, name, lost=share)

    nonzero = sorted(Fraction(abs(v)) for v in x if v)
    scale = window.above * (1 + Fraction(1, 2**40))
    gone = sum(v * scale <= FORMATS[name].flushes_to for v in nonzero)
    assert gone <= share * len(nonzero)
    assert window.above <= strict.above
    true_side = FORMATS[name].flushes_to / nonzero[int(Fraction(share) * len(nonzero))]
    assert true_side <= window.above <= 2 * true_side, "at most one octave too high"


@settings(deadline=None, max_examples=200)
@given(st.lists(arrays, max_size=4), st.sampled_from(NAMES), st.integers(-30, 40))
def test_the_model_keeps_everything_where_every_site_does(sites: list[np.ndarray], name: str, power: int) -> None:
    windows = [scale_window(summarize(x), name, site=str(i)) for i, x in enumerate(sites)]

    model = intersection(windows)

    assert model.holds(2.0**power) == all(w.holds(2.0**power) for w in windows)
    assert model.is_empty == (model.below is not None and model.below <= model.above)


def test_an_empty_window_names_the_site_of_each_side() -> None:
    tiny = scale_window(summarize(np.array([1e-12, 1e-9])), "float16", site="embed.weight")
    huge = scale_window(summarize(np.array([3.0, 4000.0])), "float16", site="head.weight")

    model = intersection([tiny, huge])

    assert not tiny.is_empty
    assert not huge.is_empty
    assert model.is_empty
    assert (model.lowest_site, model.highest_site) == ("embed.weight", "head.weight")
    assert (model.smallest_power, model.largest_power) == (None, None)


def test_a_site_can_be_too_wide_by_itself() -> None:
    window = scale_window(summarize(np.array([1e-9, 1e3])), "float8_e4m3fn", site="a")

    assert window.is_empty
    assert (window.lowest_site, window.highest_site) == ("a", "a")


@pytest.mark.parametrize("x", [np.array([]), np.zeros(4), np.array([np.nan, np.inf])])
def test_nothing_to_lose_bounds_nothing(x: np.ndarray) -> None:
    window = scale_window(summarize(x), "float16", site="a")

    assert window == ScaleWindow()
    assert not window.is_empty
    assert window.holds(1e300)


def test_a_sampled_histogram_is_said_to_be_one() -> None:
    x = np.linspace(1.0, 2.0, 2048)

    assert scale_window(summarize(x, histogram="sample"), "float16").is_sampled
    assert not scale_window(summarize(x), "float16").is_sampled


@settings(deadline=None)
@given(arrays, st.sampled_from(NAMES), st.floats(2.0**-20, 2.0**30))
def test_window_and_counts_agree_at_any_scale(x: np.ndarray, name: str, scale: float) -> None:
    summary = summarize(x)

    nothing_lost = n_flushed(summary, name, scale).most == 0 == overflow_fraction(summary, name, scale)

    assert scale_window(summary, name).holds(scale) == nothing_lost


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_an_impossible_share_is_refused(share: float) -> None:
    with pytest.raises(ConfigError, match="may be lost"):
        scale_window(Summary(), "float16", lost=share)
