"""A few elements of each parameter: copies, and none of memory that is gone."""

from __future__ import annotations

import gc

import torch
from torch import nn

from hypocenter.session.framework import FEW, WHOLE
from hypocenter.session.observers.peeker import Peeker


def test_they_are_copies_of_elements_of_each() -> None:
    parameters = [nn.Parameter(torch.arange(float(WHOLE + 1))), nn.Parameter(torch.ones(2, 2, dtype=torch.bfloat16))]
    peeker = Peeker()
    before = peeker.peek(parameters)
    with torch.no_grad():
        parameters[1][0, 0] = 3.0
    now = peeker.peek(parameters)

    assert before is not None
    assert now is not None
    (first, begin, end), (second, *other) = now.places
    assert (first, begin, second) == (0, 0, 1)
    assert end - begin <= FEW
    assert before.values[slice(*other)].tolist() == [1.0] * 4
    assert now.values[slice(*other)].tolist() == [3.0, 1.0, 1.0, 1.0]
    assert torch.equal(before.values[begin:end], now.values[begin:end])


def test_new_memory_is_looked_at_and_freed_memory_is_not() -> None:
    first, second = nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(4))
    peeker = Peeker()
    peeker.peek([first, second])
    first.data = torch.ones(4)
    second.untyped_storage().resize_(0)
    found = peeker.peek([first, second])

    assert found is not None
    assert found.places == ((0, 0, 4),)
    assert found.values.tolist() == [1.0] * 4


def test_a_model_is_not_kept_alive() -> None:
    peeker, parameter = Peeker(), nn.Parameter(torch.zeros(4))
    peeker.peek([parameter])
    del parameter
    gc.collect()

    assert not peeker._known


def test_what_is_no_plain_tensor_is_left_alone() -> None:
    class Other(nn.Parameter):
        pass

    assert Peeker().peek([Other(torch.zeros(4))]) is None
    assert Peeker().peek([nn.Parameter(torch.zeros(4, device="meta"))]) is None
    assert Peeker().peek([]) is None
