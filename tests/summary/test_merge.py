"""The monoid's laws, and that the summary of the whole is the merge of the parts."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hypocenter.nouns import Summary, replace
from hypocenter.summary.merge import merge, merge_all
from hypocenter.summary.reducers.numpy import summarize

DTYPES = (
    "bool",
    "int8",
    "uint8",
    "int16",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
)


def bounded(dtype: str) -> st.SearchStrategy:
    """Elements whose float64 sums stay finite: saturation is tested by itself."""
    if dtype in ("float64", "complex128"):
        part = st.one_of(st.floats(-1e150, 1e150), st.sampled_from([np.nan, np.inf, -np.inf, 5e-324, -0.0]))
        return part if dtype == "float64" else st.builds(complex, part, part)
    return hnp.from_dtype(np.dtype(dtype))


def arrays(max_size: int = 24) -> st.SearchStrategy[np.ndarray]:
    return st.sampled_from(DTYPES).flatmap(
        lambda dtype: hnp.arrays(dtype, st.integers(0, max_size), elements=bounded(dtype))
    )


summaries = arrays().map(lambda array: summarize(array, sketch=True))


@given(summaries, summaries, summaries)
def test_merge_is_associative(same, a, b, c) -> None:
    left, right = merge(merge(a, b), c), merge(a, merge(b, c))

    added = merge_all(replace(one, sum=abs(one.sum)) for one in (a, b, c))
    assert replace(left, sum=0.0, sumsq=0.0, sketch=None) == replace(right, sum=0.0, sumsq=0.0, sketch=None)
    assert left.sum == pytest.approx(right.sum, abs=1e-15 * added.sum)
    assert left.sumsq == pytest.approx(right.sumsq, rel=1e-15)


@given(summaries, summaries)
def test_merge_is_commutative(a, b) -> None:
    assert merge(a, b) == merge(b, a)


@given(summaries)
def test_the_empty_summary_is_neutral(a) -> None:
    assert merge(a, Summary()) == merge(Summary(), a) == a


def test_merging_nothing_gives_the_empty_summary() -> None:
    assert merge_all([]) == Summary()


@given(arrays(60), st.lists(st.integers(0, 60), max_size=5), st.randoms(use_true_random=False))
def test_parts_in_any_order_merge_to_the_whole(same, array: np.ndarray, cuts: list[int], order: random.Random) -> None:
    parts = np.split(array, sorted(cuts))
    order.shuffle(parts)

    merged = merge_all(summarize(part) for part in parts)

    same(merged, summarize(array))


@given(arrays(32), st.integers(1, 4))
def test_interleaved_shards_merge_to_the_whole(same, array: np.ndarray, n_shards: int) -> None:
    merged = merge_all(summarize(array[rank::n_shards]) for rank in range(n_shards))

    same(merged, summarize(array))


def test_a_side_without_a_sketch_leaves_the_other() -> None:
    sketched = Summary(n=1, sketch=(1.0, -2.0))

    assert merge(sketched, Summary(n=3)).sketch == (1.0, -2.0)
    assert merge(Summary(n=3), sketched).sketch == (1.0, -2.0)
    assert merge(sketched, sketched).sketch == (2.0, -4.0)


def test_sums_saturate_instead_of_becoming_infinite() -> None:
    largest = summarize(np.array([np.finfo(np.float64).max]))

    twice = merge(largest, largest)

    assert twice.sum == twice.sumsq == np.finfo(np.float64).max
