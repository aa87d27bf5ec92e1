"""Numbers of rows: equal for equal bits, the same on the host as on a device, and the same rows are kept each time."""

import pytest
import torch

from hypocenter.batch_numbers import BITS, KEPT
from hypocenter.tap import row_digests
from hypocenter.tap.row_digests import as_rows, halves, kept, whole

torch.manual_seed(0)
TENSORS = {
    "pictures": torch.randn(8, 3, 5, 5),
    "channels last": torch.randn(8, 3, 5, 5).to(memory_format=torch.channels_last),
    "half, odd length": torch.randn(8, 7).half(),
    "bfloat16": torch.randn(8, 9).bfloat16(),
    "labels": torch.randint(0, 3, (8,)),
    "flags": torch.rand(8, 11) > 0.5,
    "complex": torch.randn(8, 3, dtype=torch.complex64),
    "long rows": torch.randn(8, 5000),
}


@pytest.mark.parametrize("name", TENSORS)
def test_the_host_and_a_device_give_the_same_numbers(name):
    table = as_rows(TENSORS[name])

    assert row_digests._on_host(table).tolist() == row_digests._on_device(table).tolist()


@pytest.mark.parametrize("name", TENSORS)
def test_rows_of_equal_bits_have_equal_numbers_and_others_have_others(name):
    tensor = TENSORS[name]
    order = torch.tensor([3, 1, 1, 0, 5])

    found = row_digests._on_host(as_rows(tensor))
    again = row_digests._on_host(as_rows(tensor[order].to(memory_format=torch.preserve_format)))

    assert again.tolist() == found[order.numpy()].tolist()
    rows = [row.flatten().tolist() for row in tensor]
    assert len(set(found.tolist())) == len({str(row) for row in rows})


def test_a_row_of_one_value_has_the_number_0():
    found = row_digests._on_host(as_rows(torch.tensor([[2.0, 2.0], [2.0, 3.0]])))

    assert found[0] == 0 != found[1]


def test_numbers_survive_float32():
    digests = torch.tensor([0, 1, (1 << BITS) - 1, 0x2AAA_5555_1234])

    assert [whole(*pair) for pair in halves(digests).tolist()] == digests.tolist()


def test_of_many_rows_the_same_are_kept_wherever_they_stand():
    rows, labels = torch.randn(500, 6), torch.arange(500)
    order = torch.randperm(500)

    first, second = (kept([as_rows(rows[at]), as_rows(labels[at])]) for at in (torch.arange(500), order))

    assert len(first.positions) == KEPT
    assert set(first.positions.tolist()) == {int(order[at]) for at in second.positions}
    assert set(first.digests[1].tolist()) == set(second.digests[1].tolist())


def test_what_is_no_batch_of_rows_is_left_out():
    assert kept([as_rows(torch.zeros(())), as_rows(torch.ones(1, 4))]) is None
    assert kept([as_rows(torch.ones(4, 3)), as_rows(torch.ones(12))]).digests.keys() == {0}


def test_a_part_of_each_row_is_known_by_its_values():
    """Next tokens are asked of `tokens[:, :-1]`, which is no view of rows without a gap."""
    tokens = torch.arange(60).reshape(4, 15)
    cut, whole_rows = as_rows(tokens[:, :-1]), as_rows(tokens[:, :-1].contiguous())

    assert kept([cut]).digests[0].tolist() == kept([whole_rows]).digests[0].tolist()
    assert as_rows(torch.zeros(1025, 2048)[:, :-1]) is None
