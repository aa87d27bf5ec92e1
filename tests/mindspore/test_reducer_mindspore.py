"""MindSpore tensors against NumPy arrays of the same numbers: to the bit on the host, and as documented elsewhere."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mindspore import Parameter, Tensor, ops

from hypocenter.nouns import Summary
from hypocenter.summary.reducers import numpy as numpy_reducer
from hypocenter.summary.reducers.mindspore import MindSporeReducer, summarize
from hypocenter.summary.reducers.sampling import SIZE, SMALL
from hypocenter.summary.sketch import Placement, sketch

sys.path.insert(0, str(Path(__file__).parent))
from arrays import EDGES, INTEGERS, SHAPES, arrays, on_a_grid  # isort: skip

SAMPLED = ("n_hist", "n_zero", "n_subnormal", "absmin", "hist_first", "hist")


def reduced(tensors: Sequence[Tensor], **options: object) -> list[Summary]:
    reducer = MindSporeReducer(**options)
    assert [reducer.add(t) for t in tensors] == list(range(len(tensors)))
    return reducer.drain()


def check_close(actual: Summary, expected: Summary, *, but: tuple[str, ...] = (), rel: float = 1e-5) -> None:
    for name in Summary.__dataclass_fields__:
        if name not in (*but, "sum", "sumsq", "sketch"):
            assert getattr(actual, name) == getattr(expected, name), name
    assert actual.sumsq == pytest.approx(expected.sumsq, rel=rel)
    assert abs(actual.sum - expected.sum) <= rel * (math.sqrt(expected.n * expected.sumsq) + expected.absmax)


@settings(deadline=None)
@given(st.sampled_from(sorted(EDGES)), st.data())
def test_any_array_on_the_host_equals_numpy_to_the_bit(dtype: str, data: st.DataObject) -> None:
    array = data.draw(arrays(dtype))

    expected = numpy_reducer.summarize(array, sketch=True)

    assert summarize(Tensor(array), sketch=True) == expected
    assert reduced([Tensor(array)], sketch=True) == [expected]  # small ones are looked at whole


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [*sorted(EDGES), *INTEGERS, "complex64", "complex128"])
@pytest.mark.parametrize("bad", [False, True])
def test_every_format_and_shape_equals_numpy(dtype: str, shape: tuple[int, ...], bad: bool) -> None:
    array = on_a_grid(shape, dtype, seed=1, bad=bad)

    full, sampled = reduced([Tensor(array)], histogram="full")[0], reduced([Tensor(array)])[0]

    expected = numpy_reducer.summarize(array)
    assert full == expected
    is_sampled = array.size > SMALL and dtype in ("float16", "float32")
    check_close(sampled, expected, but=SAMPLED if is_sampled else (), rel=0.0)
    assert sampled.n_hist == (SIZE if is_sampled else expected.n)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int64", "bool"])
@pytest.mark.parametrize("bad", [False, True])
def test_on_an_accelerator_counts_and_extremes_are_exact(dtype: str, shape: tuple[int, ...], bad: bool) -> None:
    array = on_a_grid(shape, dtype, seed=2, bad=bad)

    deferred = reduced([Tensor(array)], defer_cpu=True)[0]

    # A sample is the same on the host, but for sizes that are taken whole there.
    expected = numpy_reducer.summarize(array) if array.size <= SMALL else reduced([Tensor(array)])[0]
    check_close(deferred, expected, but=SAMPLED if array.size > SIZE and deferred.n_hist == SIZE else ())
    if array.size > SMALL and dtype in ("float16", "float32"):
        check_close(deferred, expected)


@pytest.mark.parametrize("scale", [1e-36, 1e-30, 1e-10, 1e10, 1e25, 1e37])
@pytest.mark.parametrize("n", [100, 4000, 70_000])
def test_tiny_and_huge_values_keep_their_sums_there(scale: float, n: int) -> None:
    array = (np.random.default_rng(3).normal(size=n) * scale).astype(np.float32)

    check_close(reduced([Tensor(array)], defer_cpu=True)[0], numpy_reducer.summarize(array), but=SAMPLED, rel=1e-4)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("defer_cpu", [False, True])
@pytest.mark.parametrize("n", [5, 5000])
def test_nothing_finite_has_no_extremes(value: float, defer_cpu: bool, n: int) -> None:
    summary = reduced([Tensor(np.full(n, value, np.float32))], defer_cpu=defer_cpu)[0]

    assert summary.n_nonfinite == n
    assert (summary.min, summary.max, summary.absmin, summary.absmax, summary.sum) == (None, None, None, 0.0, 0.0)


@pytest.mark.parametrize("defer_cpu", [False, True])
@pytest.mark.parametrize("n", [7, 600, 5000])
def test_bfloat16_is_read_without_rounding(defer_cpu: bool, n: int) -> None:
    array = (np.random.default_rng(4).normal(size=n) * 1e-38).astype(np.float32)
    array[:3] = [np.nan, np.inf, 3e38]
    tensor = Tensor(array).astype(ms.bfloat16)
    widened = tensor.astype(ms.float32).asnumpy()

    summary = reduced([tensor], defer_cpu=defer_cpu)[0]

    expected = reduced([Tensor(widened)], defer_cpu=defer_cpu)[0]
    assert summary == expected
    assert (summary.n_nan, summary.n_posinf) == (1, 1)
    assert summarize(tensor, sketch=True) == numpy_reducer.summarize(widened, sketch=True)


@pytest.mark.parametrize("shape", [(), (7,), (200,), (12, 34), (2, 3, 4, 5), (70_000,)])
@pytest.mark.parametrize("defer_cpu", [False, True])
def test_sketches_are_those_of_numpy(shape: tuple[int, ...], defer_cpu: bool) -> None:
    array = np.random.default_rng(5).integers(-8, 9, shape).astype(np.float32)

    assert reduced([Tensor(array)], sketch=True, defer_cpu=defer_cpu)[0].sketch == tuple(sketch(array).tolist())


@pytest.mark.parametrize("defer_cpu", [False, True])
def test_the_sketch_of_a_part_knows_its_place(defer_cpu: bool) -> None:
    array = np.random.default_rng(6).integers(-8, 9, (6, 10)).astype(np.float32)
    reducer = MindSporeReducer(sketch=True, defer_cpu=defer_cpu)

    for first in (0, 2):
        reducer.add(Tensor(array[first : first + 2]), Placement(shape=(6, 10), offset=(first, 0)))
    reducer.add(Tensor(array[4:]), Placement(shape=(6, 10), offset=(4, 0)))
    parts = [np.array(summary.sketch) for summary in reducer.drain()]

    assert np.array_equal(sum(parts), sketch(array))


@pytest.mark.parametrize("n", [10, 5000])
@pytest.mark.parametrize("options", [{}, {"histogram": "full"}, {"defer_cpu": True}])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_a_parameter_that_is_overwritten_later_is_read_as_it_was(
    n: int, options: dict[str, object], dtype: str
) -> None:
    parameter = Parameter(Tensor(np.ones(n, dtype)), name="p", requires_grad=False)
    reducer = MindSporeReducer(**options)

    reducer.add(parameter)
    ops.assign(parameter, Tensor(np.full(n, 7, dtype)))

    assert reducer.drain()[0].sum == n


@pytest.mark.parametrize("defer_cpu", [False, True])
def test_what_cannot_be_read_is_only_counted(defer_cpu: bool) -> None:
    from mindspore.common.initializer import One, initializer

    waiting = initializer(One(), [2, 3], ms.float32)
    if waiting.has_init:
        assert reduced([waiting], defer_cpu=defer_cpu) == [Summary(n=6)]
    assert reduced([ms.COOTensor(Tensor([[0, 1]]), Tensor([1.0]), (3, 3))], defer_cpu=defer_cpu)[0].n_hist == 0


def test_the_tickets_of_many_kinds_keep_their_order() -> None:
    kinds = ("float32", "int64", "float16", "float64", "bool")
    sizes = [3, 5000, 1000, 600, 0, 70_000, 1, 2048] * 5
    held = [np.full(n, i).astype(kinds[i % 5]) for i, n in enumerate(sizes)]

    for defer_cpu in (False, True):
        for array, summary in zip(held, reduced([Tensor(a) for a in held], defer_cpu=defer_cpu), strict=True):
            assert (summary.n, summary.max) == (array.size, float(array[0]) if array.size else None)


def test_drain_starts_anew() -> None:
    reducer = MindSporeReducer()
    reducer.add(Tensor(np.ones(5000, np.float32)))
    first = reducer.drain()

    assert reducer.drain() == []
    assert reducer.add(Tensor(np.ones(5000, np.float32))) == 0
    assert reducer.drain() == first


@pytest.mark.parametrize("defer_cpu", [False, True])
def test_views_are_read_as_they_look(defer_cpu: bool) -> None:
    array = np.arange(4200, dtype=np.float32).reshape(60, 70)
    tensor = Tensor(array)

    for view, same in ((tensor.T, array.T), (tensor[::2, 1::3], array[::2, 1::3]), (tensor[7:], array[7:])):
        summary = reduced([view], defer_cpu=defer_cpu)[0]
        check_close(summary, numpy_reducer.summarize(same), but=SAMPLED)
