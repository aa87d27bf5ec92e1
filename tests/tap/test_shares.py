"""Shares of the elements of a batch's tensors, on the host and as a device computes them."""

import pytest
import torch

from hypocenter.batch_numbers import N_SHARES, SAMPLE
from hypocenter.tap.row_digests import as_rows
from hypocenter.tap.shares import _numbers_on, _on_device, _places, shares

IDS = torch.tensor([[5, 6, 7, 0], [8, 9, 0, 0]])


def told(*tensors, first_whole=-1):
    return shares([as_rows(each) for each in tensors], first_whole)


def test_what_they_are():
    labels = torch.tensor([[5, 6, 7, -100], [8, 9, -100, -100]])

    ids, same = told(IDS, labels, first_whole=0)

    assert ids[:4] == pytest.approx([3 / 8, 1 / 8, 1 / 8, 6 / 8])  # the last equals none: after it comes the first
    assert ids[7 + 0] == pytest.approx(3 / 8)
    assert same[4] == pytest.approx(1.0)
    assert same[5] == 0


def test_labels_that_are_the_inputs_one_further():
    stream = torch.arange(1, 10)

    _, labels = told(stream[:8].view(2, 4), stream[1:].view(2, 4), first_whole=0)

    assert labels[4] == 0
    assert labels[5] == pytest.approx(7 / 8)


def test_the_row_of_the_largest_magnitude():
    x = torch.randn(16, 3, 4)
    x[11] *= -1000

    assert told(x)[0][6] == 11


def test_a_device_computes_the_same():
    tensors = [torch.randn(16, 40), IDS, torch.randint(0, 16, (2, 4)), torch.rand(300, 2).half()]
    tables = [as_rows(each) for each in tensors]
    values = torch.stack([table.view(-1)[_places(table.numel(), table.device)].float() for table in tables])
    shapes = _numbers_on(values.device, tuple((table.shape[0], table.shape[1]) for table in tables))

    there, here = _on_device(values, shapes, 1).numpy(), shares(tables, 1)

    assert there.shape == (4, N_SHARES)
    assert there[:, :4] == pytest.approx(here[:, :4])
    assert there[[0, 3], 6].tolist() == here[[0, 3], 6].tolist()
    assert there[1:3, 7:] == pytest.approx(here[1:3, 7:])
    assert there[2, 4:6] == pytest.approx(here[2, 4:6])
    assert SAMPLE > 40
