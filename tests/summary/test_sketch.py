"""The sketch: linear, shards add up, the same in NumPy and torch, and as accurate as documented."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from hypocenter.nouns import replace
from hypocenter.summary.merge import merge_all
from hypocenter.summary.reducers import numpy as numpy_reducer
from hypocenter.summary.reducers.torch import TorchReducer, summarize
from hypocenter.summary.reducers.torch_sketch import sketch_of
from hypocenter.summary.sketch import ROW_SEED, K, Placement, hashed, sketch

torch.set_num_threads(1)

shapes = st.lists(st.integers(1, 9), min_size=0, max_size=4).map(tuple)


def integers(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Small whole numbers: their sketches are exact in float32, so that equality is bitwise."""
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(np.float32)


@given(shapes, st.integers(0, 99))
def test_it_is_linear(shape: tuple[int, ...], seed: int) -> None:
    a, b = integers(shape, seed), integers(shape, seed + 1)

    assert np.array_equal(sketch(2 * a - b), 2 * sketch(a) - sketch(b))


@settings(deadline=None)
@given(shapes, st.integers(0, 99), st.integers(0, 3), st.integers(0, 9))
def test_shards_along_any_dimension_add_up(shape: tuple[int, ...], seed: int, dim: int, cut: int) -> None:
    shape = shape or (5,)
    dim, whole = dim % len(shape), integers(shape, seed)
    cut = cut % (shape[dim] + 1)
    first, second = np.split(whole, [cut], axis=dim)
    offset = tuple(cut if d == dim else 0 for d in range(len(shape)))
    places = Placement(shape=shape, offset=(0,) * len(shape)), Placement(shape=shape, offset=offset)

    assert np.array_equal(sketch(first, places[0]) + sketch(second, places[1]), sketch(whole))
    in_torch = [sketch_of(torch.from_numpy(x.copy()), place) for x, place in zip((first, second), places, strict=True)]
    assert np.array_equal((in_torch[0] + in_torch[1]).numpy(), sketch(whole))


@given(st.integers(1, 500), st.lists(st.integers(0, 500), max_size=4))
def test_flat_shards_at_any_offset_add_up(n: int, cuts: list[int]) -> None:
    whole = integers((n,), n)
    bounds = [0, *sorted(min(cut, n) for cut in cuts), n]

    parts = [
        numpy_reducer.summarize(whole[a:b], sketch=True, place=Placement(shape=(n,), offset=(a,)))
        for a, b in itertools.pairwise(bounds)
    ]

    assert replace(merge_all(parts), sum=0.0) == replace(numpy_reducer.summarize(whole, sketch=True), sum=0.0)


@given(st.lists(st.integers(0, 2**62), min_size=1), st.integers(0, 2**32 - 1))
def test_numpy_and_torch_hash_alike(numbers: list[int], seed: int) -> None:
    in_numpy = hashed(np.array(numbers, dtype=np.int64), seed)
    in_torch = hashed(torch.tensor(numbers, dtype=torch.int64), seed)

    assert in_numpy.tolist() == in_torch.tolist()
    assert all(0 <= number < 2**32 for number in in_numpy.tolist())


def test_signs_never_change() -> None:
    """Sketches in old recordings stay comparable: MurmurHash3 fmix32 worked out with Python integers."""

    def mixed(x: int) -> int:
        x = (x ^ (x >> 16)) * 0x85EBCA6B % 2**32
        x = (x ^ (x >> 13)) * 0xC2B2AE35 % 2**32
        return x ^ (x >> 16)

    expected = [mixed((mixed(n % 2**32 ^ 0x9E3779B9) + (n >> 32) + 0x9E3779B9) % 2**32) for n in (0, 1, 77, 2**40 + 3)]

    assert hashed(np.array([0, 1, 77, 2**40 + 3]), ROW_SEED).tolist() == expected


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool]
)
@pytest.mark.parametrize("shape", [(), (0,), (7,), (200,), (3, 0), (12, 34), (2, 3, 4, 5)])
def test_torch_and_numpy_agree_on_every_dtype(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = torch.from_numpy(integers(shape, 5)).to(dtype)

    assert np.array_equal(sketch_of(x).numpy(), sketch(x.to(torch.float64).numpy()))


class Operators(TorchDispatchMode):
    """Notes what is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("shape", [(13, 11), (700,), (2, 3, 5)])
def test_signs_are_made_once_and_are_real_whatever_mode_asks_first(shape: tuple[int, ...]) -> None:
    tensor = torch.from_numpy(integers(shape, 7))

    with FakeTensorMode(allow_non_fake_inputs=True):
        sketch_of(tensor)
    with Operators() as seen:
        again = sketch_of(tensor)

    assert any("mm" in name for name in seen.names)
    assert not any("xor" in name for name in seen.names)
    assert np.array_equal(again.numpy(), sketch(tensor.numpy()))


def test_complex_numbers_are_pairs() -> None:
    x = torch.complex(torch.arange(6.0), -torch.arange(6.0)).view(2, 3)

    assert np.array_equal(sketch_of(x).numpy(), sketch(torch.view_as_real(x).numpy()))
    assert np.array_equal(sketch_of(x).numpy(), sketch(x.numpy()))
    place = Placement(shape=(4, 3), offset=(2, 0))
    assert np.array_equal(sketch_of(x, place).numpy(), sketch(x.numpy(), place))


def test_views_are_sketched_as_they_look() -> None:
    x = torch.from_numpy(integers((40, 30), 1))

    assert torch.equal(sketch_of(x.T), sketch_of(x.T.contiguous()))
    assert torch.equal(sketch_of(x[::2, 3:]), sketch_of(x[::2, 3:].contiguous()))


def test_non_finite_values_count_as_zero() -> None:
    x = torch.ones(10, 10)
    x[0, 0], x[3, 4], x[5, 5] = torch.nan, torch.inf, -torch.inf
    cleaned = x.nan_to_num(0.0, 0.0, 0.0)

    assert torch.equal(sketch_of(x), sketch_of(cleaned))
    assert np.array_equal(sketch(x.numpy()), sketch(cleaned.numpy()))
    assert summarize(x, sketch=True).n_nonfinite == 3


def test_huge_values_stay_finite() -> None:
    assert np.isfinite(sketch(np.full((100, 100), 1e308))).all()
    assert torch.isfinite(sketch_of(torch.full((100, 100), 3e38))).all()


def test_the_reducer_sketches_as_summarize_does() -> None:
    tensors = [torch.randn(30, 40), torch.randn(2000).bfloat16(), torch.tensor(3.0)]
    reducer = TorchReducer(sketch=True)

    for t in tensors:
        reducer.add(t)

    assert [summary.sketch for summary in reducer.drain()] == [summarize(t, sketch=True).sketch for t in tensors]


def errors_of_norm(matrices: list[np.ndarray]) -> np.ndarray:
    return np.array([np.linalg.norm(sketch(m)) / K / np.linalg.norm(m) - 1 for m in matrices])


def test_generic_matrices_are_mostly_within_ten_per_cent() -> None:
    rng = np.random.default_rng(0)

    errors = errors_of_norm([rng.normal(size=(rng.integers(30, 200), rng.integers(30, 200))) for _ in range(200)])

    assert (np.abs(errors) < 0.10).mean() > 0.9
    assert np.abs(errors).max() < 0.25


def test_vectors_are_mostly_within_a_quarter() -> None:
    rng = np.random.default_rng(1)

    errors = errors_of_norm([rng.normal(size=rng.integers(64, 5000)) for _ in range(200)])

    assert (np.abs(errors) < 0.25).mean() > 0.9


def test_rank_one_matrices_are_mostly_within_a_factor_two() -> None:
    rng = np.random.default_rng(2)

    errors = errors_of_norm([np.outer(rng.normal(size=90), rng.normal(size=70)) for _ in range(200)])

    assert ((errors > -0.5) & (errors < 1.0)).mean() > 0.98


def test_the_squared_norm_is_unbiased() -> None:
    rng = np.random.default_rng(3)

    squares = (1 + errors_of_norm([np.outer(rng.normal(size=50), rng.normal(size=60)) for _ in range(600)])) ** 2

    assert squares.mean() == pytest.approx(1.0, abs=4 * squares.std() / math.sqrt(600))


def test_a_structured_difference_is_seen() -> None:
    """One row, one column, one element, a constant: what real faults look like."""
    rng = np.random.default_rng(4)
    base = rng.normal(size=(128, 96))
    for change in ("row", "column", "element", "constant"):
        other = base.copy()
        place = {"row": (5,), "column": (slice(None), 7), "element": (3, 4), "constant": ()}[change]
        other[place] += 0.5

        estimate = np.linalg.norm(sketch(base) - sketch(other)) / K

        assert 0.4 < estimate / np.linalg.norm(other - base) < 2.0, change
