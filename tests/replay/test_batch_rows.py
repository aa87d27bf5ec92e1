"""Rows of a batch in place of all."""

import torch
from torch import Tensor

from hypocenter.replay.batch_rows import Rows

PLAIN = Rows(n=4, kept=torch.tensor([0, 2]))
FLAT = Rows(n=4, kept=torch.tensor([0, 2]), is_flat=True)


def test_rows_of_the_batch_are_kept_and_no_others():
    assert PLAIN.of(torch.tensor([5.0, 6.0, 7.0, 8.0])).tolist() == [5.0, 7.0]
    assert PLAIN.of(torch.ones(8)).shape == (8,)
    assert PLAIN.of(torch.tensor(1.0)).dim() == 0
    assert PLAIN.of(torch.ones(4, 3, requires_grad=True)).requires_grad


def test_a_batch_that_lies_flat_is_batch_first():
    assert FLAT.of(torch.arange(8.0)).tolist() == [0.0, 1.0, 4.0, 5.0]
    assert FLAT.of(torch.ones(6)).shape == (6,)


def test_what_numbers_the_rows_numbers_those_that_are_left():
    assert PLAIN.of(torch.arange(4)).tolist() == [0, 1]
    assert PLAIN.of(torch.tensor([0, 1, 3, 2])).tolist() == [0, 3]


def test_sizes_in_loss_code_are_those_of_what_is_left():
    x = torch.ones(2)

    assert FLAT.sizes(Tensor.view, (x, 4, -1)) == (x, 2, -1)
    assert FLAT.sizes(Tensor.reshape, (x, (8, 3))) == (x, (4, 3))
    assert FLAT.sizes(torch.arange, (0, 4)) == (0, 2)
    assert PLAIN.sizes(Tensor.view, (x, 4, -1)) == (x, 4, -1)
    assert FLAT.sizes(Tensor.sum, (x, 4)) == (x, 4)
