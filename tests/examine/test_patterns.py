"""Numbers whose sums are exact: in any order, for any number of ranks, and different for each rank."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hypocenter.examine import patterns

FORMATS = list(patterns.EXACT)
FLOATS = [dtype for dtype in FORMATS if dtype.is_floating_point]


@pytest.mark.parametrize("dtype", FORMATS)
@given(n_ranks=st.sampled_from([1, 2, 3, 4, 7, 64, 300, 3000]), salt=st.integers(0, 5), data=st.data())
def test_every_partial_sum_is_exact_in_the_format(dtype, n_ranks, salt, data):
    order = data.draw(st.permutations(range(min(n_ranks, 12))))

    exact = torch.zeros(33, dtype=torch.int64)
    rounded = torch.zeros(33, dtype=dtype)
    for rank in order:
        mine = patterns.contribution(rank, n_ranks, 33, dtype, salt)
        exact += mine
        rounded += mine.to(dtype)

    assert torch.equal(rounded.to(torch.int64), exact)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("n_ranks", [2, 8, 256, 1000])
def test_no_sum_of_magnitudes_leaves_what_the_format_holds_exactly(dtype, n_ranks):
    magnitudes = sum(patterns.contribution(rank, n_ranks, 64, dtype).abs() for rank in range(n_ranks))

    assert int(magnitudes.max()) <= max(patterns.EXACT[dtype], n_ranks * 2**40 if dtype == torch.int64 else 0)


def test_the_numbers_are_those_that_they_were():
    # given the same arguments on another machine: what the ranks compare with each other must not depend on it
    assert (
        patterns.contribution(2, 4, 4, torch.bfloat16).tolist()
        == patterns.contribution(2, 4, 9, torch.bfloat16)[:4].tolist()
    )
    assert not torch.equal(
        patterns.contribution(2, 4, 64, torch.bfloat16), patterns.contribution(1, 4, 64, torch.bfloat16)
    )


@pytest.mark.parametrize("dtype", FLOATS)
@given(rank=st.integers(0, 6), factor=st.sampled_from([-1.0, 1.0, 2.0, -0.5]))
def test_a_contribution_that_is_left_out_or_doubled_is_found(dtype, rank, factor):
    error = patterns.contribution(rank, 7, 257, dtype).double() * factor

    assert patterns.whose(error, 7, dtype) == (rank, factor)


def test_an_error_of_one_element_is_nobodys_contribution():
    error = torch.zeros(257, dtype=torch.float64)
    error[13] = 1.0

    assert patterns.whose(error, 7, torch.float32) is None


def test_few_numbers_prove_nothing():
    assert patterns.whose(torch.tensor([4.0]), 4, torch.float32) is None
