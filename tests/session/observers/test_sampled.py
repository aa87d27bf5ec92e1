"""A sample has the elements that slicing gives, and lies where the tensor lies."""

from __future__ import annotations

import pytest
import torch

from hypocenter.session.observers.sampled import COPIED_AT_MOST, gathered, gathered_columns, sample


@pytest.mark.parametrize("size", [1, 3, 8, 100])
@pytest.mark.parametrize("start", [0, 1, 7])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (5, 4), (2, 3, 4)])
def test_elements_are_at_an_equal_stride(shape: tuple[int, ...], size: int, start: int) -> None:
    whole = torch.arange(60.0).reshape(3, 20)[1:].reshape(-1)[: torch.Size(shape).numel()].reshape(shape)
    flat, stride = whole.reshape(-1), -(-whole.numel() // size)

    found = sample(whole, size, start)

    assert found is not None
    assert found.tolist() == flat[start % stride :: stride].tolist()
    assert found.numel() <= size


def test_a_sample_sees_what_is_written_later() -> None:
    parameter = torch.nn.Parameter(torch.zeros(4, 6))
    found = sample(parameter, 5)
    with torch.no_grad():
        parameter.fill_(3.0)

    assert found is not None
    assert set(found.tolist()) == {3.0}
    assert not found.requires_grad


def test_elements_that_do_not_lie_in_order() -> None:
    turned = torch.arange(12.0).reshape(3, 4).T

    found = sample(turned, 6)

    assert found is not None
    assert found.tolist() == [0.0, 8.0, 5.0, 2.0, 10.0, 7.0]
    assert sample(torch.empty(2, COPIED_AT_MOST).T, 4) is None


@pytest.mark.parametrize("empty", [torch.empty(0), torch.empty(3, device="meta"), torch.arange(3)])
def test_what_has_no_values_has_no_sample(empty: torch.Tensor) -> None:
    assert sample(empty) is None


@pytest.mark.parametrize("size", [1, 3, 100, 5000])
@pytest.mark.parametrize("start", [0, 1, 7])
def test_many_are_sampled_together_as_each_alone(size: int, start: int) -> None:
    turned = torch.arange(12.0).reshape(3, 4).T
    many = [torch.randn(()), torch.randn(7), turned, torch.empty(0), torch.randn(60, 70), turned[1:], torch.randn(9, 9)]

    found = gathered(many, size, start)

    assert found is not None
    values, sizes = found
    alone = [sample(each, size, start) for each in many]
    assert sizes == [0 if each is None else each.numel() for each in alone]
    assert values.tolist() == [x for each in alone if each is not None for x in each.tolist()]


@pytest.mark.parametrize("many", [[torch.zeros(3)], [torch.zeros(5000)], [torch.zeros(3), torch.zeros(2)]])
def test_samples_that_are_taken_together_are_copies(many: list[torch.Tensor]) -> None:
    found = gathered(many, 4)
    many[0].fill_(1.0)

    assert found is not None
    assert not found[0].any()


def test_unlike_tensors_are_not_taken_together() -> None:
    assert gathered([torch.zeros(3), torch.zeros(3, dtype=torch.bfloat16)], 4) is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e5m2])
def test_parameters_on_the_host_are_sampled_together_as_each_alone(dtype: torch.dtype) -> None:
    whole = torch.randn(6000).to(dtype)
    many = [whole[1:4001], torch.nn.Parameter(torch.randn(50, 60)).to(dtype), whole[5999:], whole[7:13].reshape(2, 3)]

    found = gathered(many, 5, 3)

    assert found is not None
    alone = [sample(each, 5, 3) for each in many]
    assert found[0].dtype == dtype
    assert found[0].float().tolist() == [x for each in alone if each is not None for x in each.float().tolist()]


@pytest.mark.parametrize("is_odd", [False, True])
def test_columns_are_sampled_together_as_each_alone(*, is_odd: bool) -> None:
    weights, steps = [torch.randn(9), torch.randn(50, 60)], [torch.tensor(3.0), torch.tensor(4.0)]
    halves = [torch.randn(7).bfloat16(), torch.randn(5000).bfloat16()]
    columns = [weights, steps, halves, [torch.randn(9), torch.randn(60, 50)]]
    odd = [[1.0, 2.0], [weights[0], halves[0]], [torch.randn(60, 50).T, weights[0]]] if is_odd else []

    found = gathered_columns([*columns, *odd], 5, 3)

    for each, column in zip(found, [*columns, *odd], strict=True):
        alone = gathered(column, 5, 3)
        assert (each is None) == (alone is None)
        if each is not None and alone is not None:
            assert each[0].dtype == alone[0].dtype
            assert (each[0].tolist(), list(each[1])) == (alone[0].tolist(), list(alone[1]))
    assert [each is None for each in found[4:]] == [True, True, False][: len(odd)]


def test_a_view_with_its_sign_turned_is_sampled_as_it_reads() -> None:
    negative = torch.view_as_complex(torch.randn(50, 2)).conj().imag

    found = gathered([negative, torch.ones(40)], 4)

    assert found is not None
    assert found[0].tolist() == [*negative[::13].tolist(), 1.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("n", [5, 100, 5000])
def test_memory_that_was_taken_away_is_not_read(n: int) -> None:
    gone = torch.randn(n + 1)[1:]
    gone.untyped_storage().resize_(0)

    found = gathered([gone, torch.ones(40)], 10)

    assert found is not None
    assert (found[0].tolist(), found[1]) == ([1.0] * 10, [0, 10])
