"""Every field that Triton's kernels find, against the reference and against the reducer of torch's own operators."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch
from by_day import first_of_each
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from hypocenter.nouns import Summary
from hypocenter.summary.merge import merge_all
from hypocenter.summary.reducers import torch_triton
from hypocenter.summary.reducers.sampling import SIZE
from hypocenter.summary.reducers.torch import TorchReducer, summarize
from hypocenter.summary.reducers.torch_triton import BLOCK, launched, read, serves

sys.path.insert(0, str(Path(__file__).parents[1]))
from patterns import FLOATS, INTS, any_bits, to_float64  # isort: skip

torch.set_num_threads(1)
SIZES = [1, SIZE, SIZE + 1, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK - 3]
SHORT = [dtype for dtype in FLOATS if dtype.itemsize <= 2]
# By day every format with the most blocks, and every size with the first format.
BOTH = [(n, dtype) for n in reversed(SIZES) for dtype in FLOATS]


def first_of_both(case):
    return (case[0], None) if case[1] is next(iter(FLOATS)) else (None, case[1])


def fused(x: torch.Tensor, *, is_full: bool = True) -> Summary:
    return read(launched(x, is_full=is_full).numpy(), x.numel(), x.dtype, is_full=is_full)


def reduced(tensors, **options) -> list[Summary]:
    reducer = TorchReducer(defer_cpu=True, **options)
    for t in tensors:
        reducer.add(t)
    return reducer.drain()


@pytest.fixture
def few_programs(monkeypatch):
    """So that each takes several blocks, and not all of them as many."""
    monkeypatch.setattr(torch_triton, "MOST_PROGRAMS", 2)


@pytest.fixture
def without_triton(monkeypatch):
    def switch_off() -> None:
        monkeypatch.setattr(torch_triton, "serves", lambda device, dtype: False)

    return switch_off


def test_the_interpreter_serves_the_cpu() -> None:
    assert all(serves(torch.device("cpu"), dtype) for dtype in (*FLOATS, *INTS))
    assert not serves(torch.device("cuda"), torch.float32)
    assert not any(serves(torch.device("cpu"), dtype) for dtype in (torch.complex64, torch.bits8))


@pytest.mark.parametrize("dtype", first_of_each(SHORT, lambda dtype: dtype if dtype.itemsize == 1 else 2))
def test_every_number_of_a_short_format(same, reference, dtype) -> None:
    integers = FLOATS[dtype]
    x = torch.arange(256**dtype.itemsize, dtype=torch.int64).to(integers).view(dtype)

    same(fused(x), reference(to_float64(x), torch.finfo(dtype).smallest_normal), rel=1e-14)


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(list(FLOATS)), st.integers(0, 10**6), st.integers(1, 60))
def test_any_bit_pattern_equals_the_reference(reference, same, dtype, seed: int, n: int) -> None:
    x = any_bits(dtype, seed, n)

    same(fused(x), reference(to_float64(x), torch.finfo(dtype).smallest_normal), rel=1e-14)


@pytest.mark.parametrize(("n", "dtype"), first_of_each(BOTH, first_of_both))
@pytest.mark.usefixtures("few_programs")
def test_blocks_and_what_is_left_of_one(same, dtype, n: int) -> None:
    x = any_bits(dtype, n, n + 1)[1:]  # it does not begin where a wide load could

    same(fused(x), summarize(x))


@pytest.mark.parametrize("dtype", first_of_each(INTS, lambda dtype: (dtype.is_signed, dtype.itemsize == 8)))
@pytest.mark.usefixtures("few_programs")
def test_integers_equal_the_reference(same, reference, dtype) -> None:
    info = torch.iinfo(dtype) if dtype is not torch.bool else None
    x = (torch.arange(3000) % 7).to(dtype)
    edges = [info.min, info.max, info.max - 1, 0, 1] if info else [0, 1]
    # torch_exact reads uint64 through float32 where torch has no other way: only what all read alike
    widest = x if dtype is torch.uint64 else torch.cat([x, torch.tensor(edges, dtype=dtype)])

    same(fused(x), reference(to_float64(x)))
    same(fused(widest), summarize(widest))
    same(reduced([x])[0], reference(to_float64(x)), but=() if dtype.itemsize > 1 else SAMPLED)


SAMPLED = ("n_hist", "n_zero", "n_subnormal", "absmin", "hist_first", "hist")


@settings(deadline=None, max_examples=15)
@given(st.sampled_from(list(FLOATS)), st.integers(0, 10**6), st.lists(st.integers(0, 600), max_size=3))
def test_parts_merge_to_the_whole(same, dtype, seed: int, cuts: list[int]) -> None:
    x = any_bits(dtype, seed, 600)
    parts = x.tensor_split(sorted(cuts))

    same(merge_all(reversed(reduced(parts, histogram="full"))), fused(x), rel=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e5m2, torch.int8])
@pytest.mark.parametrize(
    ("n", "bad"), first_of_each([(n, bad) for n in reversed(SIZES) for bad in (True, False)], lambda case: case[1])
)
def test_all_but_the_sums_are_those_of_torchs_operators(without_triton, dtype, n: int, bad: bool) -> None:
    x = any_bits(dtype, n, n) if bad and dtype.is_floating_point else (torch.arange(n) % 97 - 40).to(dtype)
    by_triton = reduced([x])[0]

    without_triton()
    by_torch = reduced([x])[0]

    for field in set(Summary.__dataclass_fields__) - {"sum", "sumsq"}:
        assert getattr(by_triton, field) == getattr(by_torch, field), field


@pytest.mark.parametrize("scale", [1e-44, 1e-30, 1.0, 1e25, 1e37])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.usefixtures("few_programs")
def test_sums_are_as_good_as_float64_makes_them(scale: float, dtype) -> None:
    n = 9 * BLOCK + 5
    x = (torch.randn(n, generator=torch.Generator().manual_seed(2)) * scale).to(dtype)
    values = to_float64(x).tolist()

    found = fused(x, is_full=False)

    # Each product is exact or rounded once. A lane adds 5 numbers one after the other; lanes and programs are added in
    # trees of 10 levels and of 1: so many roundings of 2**-53 each, of partial sums not above the sum of magnitudes.
    roundings = (1 + 5 + 10 + 1) * 2.0**-53
    assert abs(found.sum - math.fsum(values)) <= roundings * math.fsum(abs(v) for v in values)
    assert found.sumsq == pytest.approx(math.fsum(v * v for v in values), rel=roundings)


@pytest.mark.usefixtures("few_programs")
def test_a_result_repeats_to_the_bit_wherever_the_numbers_lie() -> None:
    x = torch.randn(5 * BLOCK + 77, generator=torch.Generator().manual_seed(5))
    moved = torch.cat([torch.zeros(3), x])[3:]

    first = launched(x, is_full=True)

    assert torch.equal(launched(x.clone(), is_full=True), first)
    assert torch.equal(launched(moved, is_full=True), first)


@pytest.mark.parametrize("value", [0.0, -0.0, torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("n", [1, SIZE, BLOCK + 1])
def test_nothing_but_one_number(same, value: float, n: int) -> None:
    x = torch.full((n,), value)

    same(fused(x), summarize(x))
    assert str(fused(x).sum) == "0.0"


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.T, lambda x: x[::2, 1::3], lambda x: x[:, :1].expand(-1, 50), lambda x: x.flip(0)[3:],
        lambda x: x[7:], lambda x: x[:0], lambda x: torch.complex(x, -x), lambda x: torch.complex(x, x).conj().imag,
        lambda x: x.to_sparse(), lambda x: torch.nn.Parameter(x), lambda x: x.to(torch.int64), lambda x: x > 7,
    ],
)  # fmt: skip
def test_whatever_a_tensor_is_like(same, view) -> None:
    x = view(torch.arange(4200, dtype=torch.float32).view(60, 70))

    same(reduced([x], histogram="full")[0], summarize(x))


def test_dtensor_gives_its_local_values(tmp_path) -> None:
    import torch.distributed as dist
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        sharded = distribute_tensor(torch.arange(600.0), dist.init_device_mesh("cpu", (1,)), [Shard(0)])

        assert reduced([sharded], histogram="full") == [summarize(torch.arange(600.0))]
    finally:
        dist.destroy_process_group()


class Launches:
    """Counts what is launched beside torch's operators, of which there are these."""

    def __init__(self, monkeypatch) -> None:
        self.grids: list[tuple[str, int]] = []
        kernels = torch_triton._kernels()
        for name in ("look", "combine"):
            monkeypatch.setattr(kernels, name, self._counting(name, getattr(kernels, name)))

    def _counting(self, name: str, kernel):
        outer = self

        class Counting:
            def __getitem__(self, grid):
                outer.grids.append((name, grid[0]))
                return self._launch(kernel[grid])

            @staticmethod
            def _launch(launcher):
                def launch(*args, **kwargs):
                    with _disable_current_modes():  # the interpreter copies to the host what it is given
                        launcher(*args, **kwargs)

                return launch

        return Counting()


def test_a_tensor_costs_two_launches_and_kilobytes(monkeypatch) -> None:
    class Made(TorchDispatchMode):
        operators, n_bytes = 0, 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if not func.is_view:
                self.operators += 1
                self.n_bytes += out.untyped_storage().nbytes()
            return out

    x, reducer, launches = (
        torch.randn(40 * BLOCK).to(torch.bfloat16),
        TorchReducer(defer_cpu=True),
        Launches(monkeypatch),
    )

    with Made() as made:
        reducer.add(x)
        reducer.add(x[:SIZE])

    assert launches.grids == [("look", 40), ("combine", 1), ("look", 1)]
    assert (made.operators, made.n_bytes) == (3, 2 * 8 * (8 + 512) + 8 * 8 * 40)  # two results and the partial ones


def test_nothing_is_launched_into_a_graph(monkeypatch) -> None:
    launches = Launches(monkeypatch)
    monkeypatch.setattr("hypocenter.summary.reducers.torch.is_capturing", lambda kind: True)

    assert reduced([torch.ones(3000)]) == [Summary(n=3000)]
    assert launches.grids == []


def test_a_later_change_in_place_is_not_seen() -> None:
    x, reducer = torch.ones(3000), TorchReducer(defer_cpu=True)

    reducer.add(x)
    x.fill_(torch.nan)

    assert reducer.drain()[0].sum == 3000.0
