"""The small sketch is a corner of the whole one, and linear."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from hypocenter.summary.reducers import torch_sketch
from hypocenter.summary.reducers.torch_sketch import block_elements, sketch_of
from hypocenter.summary.reducers.torch_small_sketch import SMALL, small_sketches
from hypocenter.summary.sketch import K, Placement
from hypocenter.summary.sketch import sketch as numpy_sketch


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


@pytest.fixture
def precision():
    before = torch.get_float32_matmul_precision()
    yield torch.set_float32_matmul_precision
    torch.set_float32_matmul_precision(before)


class ShortFactors(TorchDispatchMode):
    """Products as a device makes them that cuts factors: here to the 8 bits of bfloat16."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.mm.default:
            args = tuple(factor.to(torch.bfloat16).to(factor.dtype) for factor in args)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_precision_of_products_that_the_user_has_set_does_not_reach_it(precision, dtype) -> None:
    values = (torch.randn(64, 48, generator=torch.Generator().manual_seed(3)) + 100.0).to(dtype)
    precision("highest")
    small, whole = small_sketches([values])[0], sketch_of(values)

    precision("medium")
    with ShortFactors():
        small_again, whole_again = small_sketches([values])[0], sketch_of(values)

    scale = float(values.float().norm())
    for exact, again in ((small, small_again), (whole, whole_again)):
        torch.testing.assert_close(again, exact, rtol=1e-5, atol=1e-6 * scale)


class Counting(TorchDispatchMode):
    n = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.n += not func.is_view
        return func(*args, **(kwargs or {}))


def test_blocks_are_sized_for_devices(monkeypatch) -> None:
    assert block_elements(torch.device("cuda")) == 32 * block_elements(torch.device("cpu"))
    values = torch.ones(2048, 2048, dtype=torch.bfloat16)  # 4M elements
    counts = []
    for kind in ("cpu", "cuda"):
        n_elements = block_elements(torch.device(kind))
        monkeypatch.setattr(torch_sketch, "block_elements", lambda _, n=n_elements: n)
        small_sketches([values])  # its signs are made once
        with Counting() as counting:
            small_sketches([values])
        counts.append(counting.n)

    assert counts[0] > 32
    assert counts[1] <= 6


VIEWS = {
    "vector": lambda x: x[3:-5].reshape(-1),
    "part of a vector": lambda x: x[5:],
    "strided vector": lambda x: x[::3],
    "transposed": lambda x: x[:6000].view(60, 100).T,
    "three": lambda x: x[:6000].view(10, 20, 30),
    "permuted": lambda x: x[:6000].view(10, 20, 30).permute(2, 0, 1),
    "narrow": lambda x: x[:, None],
    "a row each": lambda x: x[:6000].view(1, 1, -1),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blocks_of_any_size_give_the_same(monkeypatch, view: str, dtype: torch.dtype) -> None:
    values = VIEWS[view](torch.randint(-9, 9, (6400,), generator=torch.Generator().manual_seed(1)).to(dtype))
    shape = (2 * values.shape[0] + 77, *values.shape[1:])
    places = [None, Placement(shape=shape, offset=(values.shape[0] + 5, *[0] * (values.ndim - 1)))]
    expected = [numpy_sketch(values.float().numpy(), place).tolist() for place in places]

    for n in (64, 64 * 7, 1 << 20):
        monkeypatch.setattr(torch_sketch, "block_elements", lambda _, n=n: n)
        assert [sketch_of(values, place).tolist() for place in places] == expected
        (small,) = small_sketches([values])
        assert small is not None
        assert small.tolist() == np.reshape(expected[0], (K, K))[:SMALL, :SMALL].reshape(-1).tolist()
