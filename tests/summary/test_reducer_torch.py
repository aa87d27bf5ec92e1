"""torch summaries: every dtype against the reference, the hot path against the exact one, and no trace left behind."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hypocenter.nouns import Summary
from hypocenter.summary.merge import merge_all
from hypocenter.summary.reducers import numpy as numpy_reducer
from hypocenter.summary.reducers.sampling import SIZE, SMALL
from hypocenter.summary.reducers.torch import TorchReducer, summarize

sys.path.insert(0, str(Path(__file__).parent))
from patterns import FLOATS, INTS, any_bits, to_float64  # isort: skip

torch.set_num_threads(1)

HOT = (torch.float32, torch.bfloat16, torch.float16)


@settings(deadline=None)
@given(st.sampled_from(list(FLOATS)), st.integers(0, 10**6), st.integers(0, 60))
def test_any_bit_pattern_equals_the_reference(reference, same, dtype, seed: int, n: int) -> None:
    x = any_bits(dtype, seed, n)

    same(summarize(x), reference(to_float64(x), torch.finfo(dtype).smallest_normal))


@settings(deadline=None)
@given(
    st.sampled_from(list(FLOATS)), st.integers(0, 10**6), st.lists(st.integers(0, 300), max_size=4),
    st.sampled_from([summarize, None]),
)  # fmt: skip
def test_parts_merge_to_the_whole(same, dtype, seed: int, cuts: list[int], reduce) -> None:
    x = any_bits(dtype, seed, 300)
    parts = x.tensor_split(sorted(cuts))

    summaries = [summarize(part) for part in parts] if reduce else reduced(parts)

    same(merge_all(reversed(summaries)), summarize(x))


def reduced(tensors, **options) -> list[Summary]:
    reducer = TorchReducer(**options)
    tickets = [reducer.add(t) for t in tensors]
    assert tickets == list(range(len(tensors)))
    return reducer.drain()


@pytest.mark.parametrize("dtype", INTS)
def test_integers_equal_the_reference(reference, same, dtype) -> None:
    x = (torch.arange(3000) % 7).to(dtype)

    same(summarize(x), reference(to_float64(x)))
    same(reduced([x])[0], reference(to_float64(x)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_numpy_and_torch_agree(dtype) -> None:
    x = any_bits(dtype, 3, 2000)

    from_torch, from_numpy = summarize(x), numpy_reducer.summarize(x.numpy())

    for name in set(Summary.__dataclass_fields__) - {"sum", "sumsq"}:
        assert getattr(from_torch, name) == getattr(from_numpy, name), name
    assert from_torch.sumsq == pytest.approx(from_numpy.sumsq, rel=1e-12)


SHAPES = [(), (1,), (0,), (3, 0), (SMALL,), (SMALL + 1,), (33, 65), (4, 5, 600), (600_001,)]


@pytest.mark.parametrize("dtype", HOT)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("defer_cpu", [False, True])
def test_the_hot_path_equals_the_exact_one(same, sampled, dtype, shape, defer_cpu: bool) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)

    hot, exact = reduced([x], defer_cpu=defer_cpu)[0], summarize(x)

    same(hot, exact, rel=1e-4, but=sampled if x.numel() > (SIZE if defer_cpu else SMALL) else ())
    assert hot.n_hist == min(x.numel(), SIZE if defer_cpu or x.numel() > SMALL else SMALL)
    assert sum(hot.hist) + hot.n_zero == hot.n_hist


@pytest.mark.parametrize("dtype", HOT)
@pytest.mark.parametrize("bad", [[torch.nan], [torch.inf], [-torch.inf], [torch.inf, -torch.inf, torch.nan]])
@pytest.mark.parametrize("n", [7, 5000, 600_000])
@pytest.mark.parametrize("defer_cpu", [False, True])
def test_non_finite_values_are_counted(same, sampled, dtype, bad: list[float], n: int, defer_cpu: bool) -> None:
    x = torch.randn(n, generator=torch.Generator().manual_seed(1)).to(dtype)
    x[n // 2 : n // 2 + len(bad)] = torch.tensor(bad, dtype=dtype)

    same(reduced([x], defer_cpu=defer_cpu)[0], summarize(x), rel=1e-4, but=sampled if n > SMALL else ())


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("n", [5, 5000])
@pytest.mark.parametrize("defer_cpu", [False, True])
def test_nothing_finite_has_no_extremes(value: float, n: int, defer_cpu: bool) -> None:
    summary = reduced([torch.full((n,), value)], defer_cpu=defer_cpu)[0]

    assert summary.n_nonfinite == n
    assert (summary.min, summary.max, summary.absmin, summary.absmax, summary.sum) == (None, None, None, 0.0, 0.0)


@pytest.mark.parametrize("scale", [1e-44, 1e-30, 1e-20, 1e-10, 1e10, 1e25, 1e37])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n", [100, 4000, 600_000])
@pytest.mark.parametrize("defer_cpu", [False, True])
def test_tiny_and_huge_values_keep_their_sums(same, sampled, scale: float, dtype, n: int, defer_cpu: bool) -> None:
    x = (torch.randn(n, generator=torch.Generator().manual_seed(2)) * scale).to(dtype)

    same(reduced([x], defer_cpu=defer_cpu)[0], summarize(x), rel=1e-4, but=sampled if n > SIZE else ())


def test_zeros_are_exact() -> None:
    summary = reduced([torch.zeros(5000)])[0]

    assert (summary.min, summary.max, summary.absmax, summary.sumsq, summary.absmin) == (0.0, 0.0, 0.0, 0.0, None)
    assert summary.n_zero == summary.n_hist == SIZE


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.T, lambda x: x[::2, 1::3], lambda x: x[:, :1].expand(-1, 50), lambda x: x.T.unsqueeze(1),
        lambda x: x.flip(0)[3:], lambda x: x.view(4, 15, 7, 10).transpose(1, 2), lambda x: x[7:],
    ],
)  # fmt: skip
def test_views_are_summarised_without_their_rest(same, sampled, reference, view) -> None:
    x = view(torch.arange(4200, dtype=torch.float32).view(60, 70))

    expected = reference(to_float64(x))

    same(summarize(x), expected)
    same(reduced([x])[0], expected, rel=1e-5, but=sampled)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128, torch.complex32])
@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_a_complex_number_is_two(same, sampled, dtype) -> None:
    x = torch.complex(torch.randn(2000), torch.randn(2000)).to(dtype)

    assert summarize(x).n == 4000
    same(summarize(x.conj()), summarize(torch.view_as_real(x.resolve_conj().conj().resolve_conj())))
    same(reduced([x])[0], summarize(x), rel=1e-5, but=sampled)


def test_bool_counts_ones() -> None:
    summary = reduced([torch.tensor([True, False, True])])[0]

    assert [summarize(torch.tensor(bits)).hist for bits in ([False], [True], [])] == [(), (1,), ()]
    assert (summary.n, summary.n_zero, summary.sum, summary.hist_first, summary.hist) == (3, 1, 2.0, 0, (2,))


class Named(torch.Tensor):
    pass


class Opaque(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise RuntimeError("hands off")


def weird_tensors() -> dict[str, tuple[torch.Tensor, int]]:
    """Name -> (tensor, elements whose values can be read)."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    dense = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    with FakeTensorMode():
        fake = torch.empty(4)
    return {
        "meta": (torch.empty(4, device="meta"), 0),
        "fake": (fake, 0),
        "coo": (dense.to_sparse(), 2),
        "csr": (dense.to_sparse_csr(), 2),
        "csc": (dense.to_sparse_csc(), 2),
        "quantized": (torch.quantize_per_tensor(dense, 0.1, 0, torch.qint8), 0),
        "nested": (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), 0),
        "jagged": (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), 0),
        "subclass": (dense.as_subclass(Named), 4),
        "opaque": (dense.as_subclass(Opaque), 4),
        "parameter": (torch.nn.Parameter(dense), 4),
        "bits": (torch.empty(4, dtype=torch.bits8), 0),
        "negative view": (torch.complex(dense, dense).conj().imag, 4),
    }


WEIRD = (
    "meta", "fake", "coo", "csr", "csc", "quantized", "nested", "jagged", "subclass", "opaque", "parameter", "bits",
    "negative view",
)  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", WEIRD)
@pytest.mark.parametrize("defer_cpu", [False, True])
@pytest.mark.parametrize("sketch", [False, True])
def test_weird_tensors_never_raise(name: str, defer_cpu: bool, sketch: bool) -> None:
    weird = weird_tensors()
    assert set(WEIRD) == set(weird)
    t, n_readable = weird[name]

    for summary in (summarize(t, sketch=sketch), reduced([t], defer_cpu=defer_cpu, sketch=sketch)[0]):
        assert summary.n_hist == n_readable
        assert summary.sumsq == pytest.approx(13.0 if n_readable else 0.0, rel=1e-6)
        assert (summary.sketch is not None) == (sketch and n_readable > 0)


def test_under_vmap_only_the_elements_are_counted() -> None:
    seen: list[Summary] = []

    def body(x: torch.Tensor) -> torch.Tensor:
        seen.append(summarize(x))
        seen.extend(reduced([x]))
        return x

    torch.vmap(body)(torch.ones(2, 3))

    assert seen == [Summary(n=3), Summary(n=3)]


@pytest.mark.parametrize("options", [{}, {"histogram": "full"}, {"defer_cpu": True}, {"sketch": True}])
def test_nothing_of_the_run_is_touched(options) -> None:
    x = torch.randn(40, 50, requires_grad=True)
    y = (x * 2).T
    before, version, rng = y.detach().clone(), y._version, torch.get_rng_state()

    reducer = TorchReducer(**options)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        reducer.add(y)
        reducer.add(x)
    summaries = reducer.drain()
    y.sum().backward()

    assert torch.equal(y.detach(), before)
    assert (y._version, x._version) == (version, 0)
    assert torch.equal(torch.get_rng_state(), rng)
    assert torch.equal(x.grad, torch.full_like(x, 2.0))
    assert all(summary.n == 2000 for summary in summaries)


def test_autocast_and_modes_change_no_number() -> None:
    x = torch.randn(3000)
    expected = reduced([x], sketch=True)

    with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode():
        assert reduced([x], sketch=True) == expected
        assert reduced([x.clone()], sketch=True) == expected


@pytest.mark.parametrize("n", [10, 5000])
@pytest.mark.parametrize("options", [{}, {"histogram": "full"}, {"defer_cpu": True}])
def test_a_later_change_in_place_is_not_seen(n: int, options) -> None:
    x = torch.ones(n)
    reducer = TorchReducer(**options)

    reducer.add(x)
    x.fill_(torch.nan)

    assert reducer.drain()[0].sum == n


def test_drain_starts_anew() -> None:
    reducer = TorchReducer()
    reducer.add(torch.ones(5000))
    first = reducer.drain()

    assert reducer.drain() == []
    assert reducer.add(torch.ones(5000)) == 0
    assert reducer.drain() == first


def test_many_tensors_of_all_kinds_keep_their_tickets(same, sampled) -> None:
    sizes = [3, 5000, 1000, 600, 0, 70_000, 1, 2048] * 40
    tensors = [torch.full((n,), float(i)).to(HOT[i % 3]) if i % 5 else torch.full((n,), i) for i, n in enumerate(sizes)]

    for t, summary in zip(tensors, reduced(tensors), strict=True):
        same(summary, summarize(t), rel=2e-3, but=sampled)


def test_full_histogram_looks_at_all() -> None:
    x = torch.randn(5000)

    assert reduced([x], histogram="full")[0] == summarize(x)
    assert summarize(x, histogram="sample") == reduced([x])[0]


def test_dtensor_and_async_collective_give_the_local_values(tmp_path) -> None:
    import torch.distributed as dist
    from torch.distributed._functional_collectives import all_reduce
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        mesh = dist.init_device_mesh("cpu", (1,))
        sharded = distribute_tensor(torch.arange(6.0), mesh, [Shard(0)])
        waiting = all_reduce(torch.arange(6.0), "sum", dist.group.WORLD)

        assert reduced([sharded, waiting, sharded.clone()]) == [summarize(torch.arange(6.0))] * 3
        assert summarize(sharded, sketch=True) == summarize(torch.arange(6.0), sketch=True)
    finally:
        dist.destroy_process_group()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("dtype", HOT)
def test_an_accelerator_agrees_with_the_cpu(same, sampled, dtype) -> None:
    tensors = [torch.randn(n).to(dtype) for n in (5, 4000, 700_000)] + [
        torch.tensor([1.0, torch.nan, torch.inf]).to(dtype)
    ]

    for on_cpu, from_device in zip(tensors, reduced([t.cuda() for t in tensors]), strict=True):
        same(from_device, summarize(on_cpu), rel=1e-4, but=sampled)
        same(summarize(on_cpu.cuda()), summarize(on_cpu))
