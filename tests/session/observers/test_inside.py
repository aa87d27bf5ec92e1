"""What is inside of a batch's tensors comes to the host at once, or with a transfer: the same."""

import pytest
import torch

from hypocenter.detect.replica_rows import ROW_PLACES
from hypocenter.session.observers.inside import Told, look
from hypocenter.tap import row_digests
from hypocenter.tap.host_digest import host_values

torch.manual_seed(0)
GIVEN = [
    ("in[0]", torch.randn(50, 3, 5)),
    ("ids", torch.randint(0, 90, (50, 12))),
    ("scale", torch.ones(())),
    ("labels", torch.randint(0, 9, (50,))),
    ("flat", torch.randint(0, 9, (600,))),
]


def told(given, read_by=host_values):
    found = {}
    for numbers, read in look([(name, tensor, read_by(tensor)) for name, tensor in given], Told(found, 0)):
        assert numbers.dtype == torch.float32
        assert numbers.numel() % 2 == 0
        read(numbers.tolist())
    return {name: inside for (_, name), inside in found.items()}


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_a_device_tells_the_same(monkeypatch, n):
    here = told(GIVEN[:n])
    monkeypatch.setattr(row_digests, "is_on_host", lambda _: False)
    there = told(GIVEN[:n], lambda _: None)

    assert {name: rows for name, (rows, _) in there.items()} == {name: rows for name, (rows, _) in here.items()}
    for name, (_, shares) in here.items():
        assert there[name][1][:4] == pytest.approx(shares[:4])


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_torch_tells_the_same_as_numpy(n):
    assert told(GIVEN[:n], lambda _: None) == told(GIVEN[:n])


def test_one_tensor_that_only_torch_reads_does_not_part_the_batch():
    given = [("a", torch.randn(50, 4)), ("b", torch.randn(50, 9).bfloat16()), ("c", torch.randint(0, 9, (50,)))]

    found = told(given)

    assert len({tuple(row % ROW_PLACES for row in rows) for rows, _ in found.values()}) == 1
    assert found == told(given, lambda _: None)


def test_rows_are_those_of_one_batch_and_flat_labels_have_none():
    found = told(GIVEN)

    assert {name: len(rows) for name, (rows, _) in found.items()} == {"in[0]": 32, "ids": 32, "labels": 32, "flat": 0}
    places = [[row % ROW_PLACES for row in found[name][0]] for name in ("in[0]", "ids", "labels")]
    assert places[0] == places[1] == places[2]
    labels = {row % ROW_PLACES: row // ROW_PLACES for row in found["labels"][0]}
    assert len(set(labels.values())) == len({int(GIVEN[3][1][place]) for place in labels})


def test_what_looking_leaves_behind():
    x = torch.randn(8, 4, requires_grad=True)
    before, state = x.detach().clone(), torch.get_rng_state()

    told([("x", x), ("t", x.t()), ("empty", torch.empty(0, 3)), ("sparse", x.detach().to_sparse())])

    assert torch.equal(x, before)
    assert torch.equal(torch.get_rng_state(), state)
    x.detach().untyped_storage().resize_(0)  # numpy() would forbid it
