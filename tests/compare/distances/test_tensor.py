from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hypocenter.compare.distances.tensor import coarser, tensor_distance, ulp
from hypocenter.compare.values.tensor_file import Stored


def stored(values, dtype="float32"):
    if dtype == "bfloat16":
        raw = torch.as_tensor(values).bfloat16().view(torch.int16).numpy().view(np.uint16)
        return Stored(dtype=dtype, raw=raw)
    return Stored(dtype=dtype, raw=np.asarray(values, dtype))


def test_measures_are_what_numpy_computes_whatever_the_blocks():
    rng = np.random.default_rng(0)
    a = rng.normal(size=(37, 5, 11)).astype(np.float32)
    b = (a * (1 + 1e-3 * rng.normal(size=a.shape))).astype(np.float32)
    x, y = a.astype(np.float64), b.astype(np.float64)

    for block in (1, 100, 10**6):
        found = tensor_distance([(stored(a), stored(b))], block=block)

        assert found.n == a.size
        assert found.max_abs == np.abs(y - x).max()
        assert found.max_rel == (np.abs(y - x) / np.abs(x)).max()
        assert math.isclose(found.relative, np.linalg.norm(y - x) / np.linalg.norm(x), rel_tol=1e-12)
        assert math.isclose(found.cosine, (x * y).sum() / np.linalg.norm(x) / np.linalg.norm(y), rel_tol=1e-12)
        assert found.allclose == np.allclose(b, a, rtol=1.3e-6, atol=1e-5)
        assert sum(found.ulp_histogram.values()) == a.size
        worst = np.unravel_index(np.abs(y - x).argmax(), a.shape)
        assert found.worst[0].index == worst
        assert found.worst[0].baseline == a[worst]


def test_error_ratios_are_msprobes():
    """Values by hand from msprobe's get_relative_err: eps is added to both where the baseline is zero."""
    baseline = [1.0, 1.0, 1.0, 1.0, 0.0, 0.0]
    candidate = [1.0005, 1.002, 1.01, 1.0, 0.0, 1e-6]

    found = tensor_distance([(stored(baseline), stored(candidate))])

    assert found.one_thousandth == 3 / 6  # 1.0005, 1.0 and the equal zeros
    assert found.five_thousandths == 4 / 6


def test_ulps_are_of_the_coarser_format():
    found = tensor_distance([(stored([1.0, 1.0, 1.0, 4.0]), stored([1.0, 1 + 2**-7, 1 + 2**-6, 4.0], "bfloat16"))])

    assert found.ulp_dtype == "bfloat16"
    assert found.ulp_max == 2.0
    assert found.ulp_histogram == {"0": 2, "1": 1, "2": 1}
    assert found.ulp_p99 == 2.0
    assert coarser("float16", "float8_e4m3fnuz") == "float8_e4m3fnuz"


def test_places_of_nonfinite_values_must_agree():
    bad = [math.nan, math.inf, -math.inf, 1.0]

    same = tensor_distance([(stored(bad), stored(bad))])
    other = tensor_distance([(stored(bad), stored([math.nan, -math.inf, -math.inf, 1.0]))])

    assert same.is_equal
    assert same.n_nan == (1, 1)
    assert same.n_inf == (2, 2)
    assert other.n_nonfinite_differs == 1
    assert other.relative == math.inf
    assert not other.allclose


def test_of_nothing_and_of_zero():
    assert tensor_distance([(stored(np.empty((0, 3))), stored(np.empty((0, 3))))]).is_equal
    assert tensor_distance([(stored(np.zeros(3)), stored(np.zeros(3)))]).relative == 0.0
    assert tensor_distance([(stored(np.zeros(3)), stored([0.0, 1.0, 0.0]))]).relative == math.inf
    assert tensor_distance([(stored(2.0), stored(2.5))]).relative == 0.25


@settings(max_examples=100, deadline=None)
@given(hnp.arrays(np.float32, st.integers(1, 30)), hnp.arrays(np.float32, st.integers(1, 30)), st.integers(1, 9))
def test_any_bits_give_an_answer(a, b, block):
    n = min(len(a), len(b))

    found = tensor_distance([(stored(a[:n]), stored(b[:n]))], block=block)

    assert found.is_equal == np.array_equal(a[:n], b[:n], equal_nan=True)
    assert 0.0 <= found.five_thousandths <= 1.0
    assert found.one_thousandth <= found.five_thousandths
    assert found.ulp_p50 <= found.ulp_p99 <= max(found.ulp_max, 2.0**-6)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_ulp_is_numpys_spacing(dtype):
    values = np.array([1.0, 1.5, 3.0, 1e-7, 1000.0], dtype)

    np.testing.assert_array_equal(ulp(values.astype(np.float64), dtype), np.spacing(values).astype(np.float64))
