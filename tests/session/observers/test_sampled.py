"""A sample has the elements that slicing gives, and lies where the tensor lies."""

from __future__ import annotations

import pytest
import torch

from hypocenter.session.observers.sampled import COPIED_AT_MOST, sample


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
