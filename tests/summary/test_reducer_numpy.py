"""The NumPy reducer against the element-by-element reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hypocenter.nouns import Summary
from hypocenter.summary.reducers.numpy import summarize

EDGES = {
    "float16": [0.0, -0.0, 6e-8, -6e-5, 6.104e-5, 65504.0, np.nan, np.inf, -np.inf, 1.0, 2.0],
    "float32": [0.0, 1e-45, -1e-40, 1.1754944e-38, 3.4e38, np.nan, np.inf, -np.inf, 0.5, -1.0],
    "float64": [0.0, 5e-324, -1e-310, 2.2250738585072014e-308, 1e150, np.nan, np.inf, -np.inf, 1.9999999999999998],
}


@given(st.sampled_from(sorted(EDGES)), st.data())
def test_every_field_equals_the_reference(reference, same, dtype: str, data: st.DataObject) -> None:
    finite = st.floats(-1e4, 1e4, width=16)
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))
    array = data.draw(hnp.arrays(dtype, shape, elements=st.sampled_from(EDGES[dtype]) | finite))

    same(summarize(array), reference(array.astype(np.float64), float(np.finfo(dtype).smallest_normal)))


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"])
def test_integers_are_numbers(reference, same, dtype: str) -> None:
    array = (np.arange(200) % 5).astype(dtype)

    same(summarize(array), reference(array.astype(np.float64)))


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_a_complex_number_is_two(reference, same, dtype: str) -> None:
    array = np.array([1 + 2j, complex(np.nan, -3), complex(0, np.inf)], dtype=dtype)

    parts = np.array([1, 2, np.nan, -3, 0, np.inf], dtype=np.float64)
    same(summarize(array), reference(parts, float(np.finfo(dtype).smallest_normal)))


def test_chunks_make_no_difference(same) -> None:
    array = np.random.default_rng(0).normal(size=(1000, 300)).astype(np.float32)[:, ::-1].T

    whole = summarize(array)

    same(whole, summarize(array.reshape(-1)[::-1]))
    assert whole.n == whole.n_hist == 300_000
    assert sum(whole.hist) + whole.n_zero == 300_000


def test_the_sample_says_how_large_it_is(same, sampled: tuple[str, ...]) -> None:
    array = np.random.default_rng(0).normal(size=10_000)

    summary = summarize(array, histogram="sample")

    same(summary, summarize(array), but=sampled)
    assert summary.n_hist == sum(summary.hist) == 512


@pytest.mark.parametrize("array", [np.array(["a", "b"]), np.array([object(), None])])
def test_what_is_no_number_is_only_counted(array: np.ndarray) -> None:
    assert summarize(array) == Summary(n=2)
