"""Norms of many tensors: of every size, format and number the same as one kernel for each gives."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hypocenter.tap.gradients import ROW, SMALL, NormReader, are_plain, local, read_norms

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.complex64]
sizes = st.lists(st.sampled_from([1, 2, 7, 64, SMALL - 1, SMALL, SMALL + 1, ROW]), min_size=1, max_size=48)


@given(sizes, st.sampled_from(DTYPES), st.integers(0, 2**31))
def test_norms_are_those_of_each_tensor(sizes, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(n, generator=generator).to(dtype).requires_grad_() for n in sizes]

    found = read_norms(tensors)

    wide = torch.complex128 if dtype.is_complex else torch.float64
    expected = [float(torch.linalg.vector_norm(t.detach().to(wide))) for t in tensors]
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("n_elements", [3, SMALL + 1])
def test_what_is_not_finite_shows_in_its_own_norm_only(value, n_elements):
    tensors = [torch.ones(n_elements) for _ in range(32)]
    tensors[5][2] = value

    found = read_norms(tensors)

    assert [i for i, norm in enumerate(found) if not math.isfinite(norm)] == [5]


def test_shapes_and_strides_do_not_matter():
    tensors = [torch.arange(24.0).reshape(2, 3, 4).transpose(0, 2) for _ in range(32)]

    assert read_norms(tensors) == pytest.approx([math.sqrt(sum(i * i for i in range(24)))] * 32)


def test_another_device_is_not_read():
    assert read_norms([torch.ones(2), torch.ones(2, device="meta")]) is None


@pytest.mark.parametrize(
    "other",
    [torch.ones(0), torch.ones(2, device="meta"), torch.ones(2).to_sparse(), torch.ones(2, dtype=torch.int64)],
    ids=["empty", "meta", "sparse", "integer"],
)
def test_plain_is_what_local_gives_back(other):
    plain = [torch.ones(2), torch.nn.Parameter(torch.ones(3)).detach()]

    assert are_plain(plain)
    assert all(local(tensor) is tensor for tensor in plain)
    assert not are_plain([*plain, other])
    assert local(other) is not other


def test_a_reader_serves_tensors_of_the_same_sizes_and_refuses_others():
    reader = NormReader([torch.ones(3), torch.ones(SMALL + 1), torch.ones(5)])
    others = [torch.full((3,), 2.0), torch.full((SMALL + 1,), 3.0), torch.full((5,), 4.0)]

    assert reader.fits(others)
    assert reader.read(others) == pytest.approx([math.sqrt(12), 3 * math.sqrt(SMALL + 1), math.sqrt(80)])
    assert not reader.fits([torch.ones(3).to_sparse(), *others[1:]])
    with pytest.raises(ValueError, match="sizes"):
        reader.read([torch.ones(1), torch.ones(SMALL + 1), torch.ones(0)])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_norm_of_one_tensor_alone_leaves_it_as_it_is(dtype: torch.dtype) -> None:
    tensor = torch.tensor([3.0, -4.0], dtype=dtype)

    assert NormReader([tensor]).read([tensor]) == [5.0]
    assert tensor.tolist() == [3.0, -4.0]


def test_squares_that_overflow_float64_are_no_warning() -> None:
    tensors = [torch.full((2,), 1e200, dtype=torch.float64), torch.ones(1, dtype=torch.float64)]

    assert NormReader(tensors).read(tensors) == [math.inf, 1.0]
