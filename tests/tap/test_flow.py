"""The shape of a graph tells what was done, of what; not with which values, nor with which tensors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hypocenter.tap.flow import shape_of


def loss(branch: Callable[[Tensor], Tensor] = lambda h: h, n: int = 2, width: int = 4) -> Tensor:
    weights = [torch.randn(width, width, requires_grad=True) for _ in range(n)]
    hidden = torch.randn(3, width)
    for weight in weights:
        hidden = hidden @ weight + branch(hidden).tanh()
    return hidden.sum()


def test_the_same_program_has_the_same_shape_whatever_its_values_and_sizes() -> None:
    assert shape_of([loss()]) == shape_of([loss()]) == shape_of([loss(width=7)])


@pytest.mark.parametrize("other", [loss(lambda h: h.detach()), loss(lambda h: h * 2), loss(n=3), loss() + 1.0])
def test_another_one_has_another(other: Tensor) -> None:
    assert shape_of([other]) != shape_of([loss()])


def test_whose_result_is_used_counts() -> None:
    x = torch.randn(3, requires_grad=True)
    one, other = x.sin(), x.cos()

    assert shape_of([(one * one + other).sum()]) != shape_of([(one * other + other).sum()])


def test_several_roots_and_roots_without_a_graph() -> None:
    assert shape_of([loss(), torch.ones(())]) == shape_of([loss()]) != shape_of([loss(), loss()])
    assert shape_of([]) == shape_of([torch.ones((), requires_grad=True)])
