"""The small sketch is a corner of the whole one, and linear."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hypocenter.summary.reducers.torch_sketch import SMALL, sketch_of, small_sketches
from hypocenter.summary.sketch import K


@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.integers(1, 70), min_size=0, max_size=3),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64]),
    seed=st.integers(0, 100),
)
def test_is_the_corner_of_the_whole(shape: list[int], dtype: torch.dtype, seed: int) -> None:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)

    (small,) = small_sketches([values])

    whole = sketch_of(values).reshape(K, K)[:SMALL, :SMALL]
    assert small is not None
    torch.testing.assert_close(small.reshape(SMALL, SMALL), whole, rtol=1e-4, atol=1e-4 * float(values.float().norm()))


def test_sums_and_factors_show() -> None:
    a, b = torch.randn(300, 40), torch.randn(300, 40)

    of_a, of_b, of_sum = (s for s in small_sketches([a, b, a + 3 * b]) if s is not None)

    torch.testing.assert_close(of_sum, of_a + 3 * of_b, rtol=1e-4, atol=1e-2)


def test_one_changed_element_shows_the_same_magnitude_everywhere() -> None:
    values = torch.randn(64, 32)
    other = values.clone()
    other[5, 7] += 2.5

    a, b = (s for s in small_sketches([values, other]) if s is not None)

    assert (b - a).abs().tolist() == pytest.approx([2.5] * SMALL * SMALL, rel=1e-4)


def test_nothing_to_sketch() -> None:
    assert small_sketches([torch.empty(3, device="meta"), torch.empty(0)]) == [None, None]
