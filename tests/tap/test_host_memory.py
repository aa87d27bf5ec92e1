"""Looking at a tensor leaves no trace on it."""

from __future__ import annotations

import pytest
import torch

from hypocenter.tap.digest import digests, to_host
from hypocenter.tap.host_digest import host_digest
from hypocenter.tap.host_memory import bytes_of, is_there


@pytest.mark.parametrize("n", [10, 100_000])
def test_a_digested_tensor_can_still_be_resized(n: int) -> None:
    tensor = torch.randn(n)

    found = host_digest(tensor), *to_host(digests([tensor]))

    assert found[-1] is not None
    tensor.untyped_storage().resize_(0)
    assert (host_digest(tensor), digests([tensor])) == (None, [None])


def test_bytes_are_those_of_the_tensor() -> None:
    tensor = torch.arange(6, dtype=torch.int16)[2:]

    assert bytes_of(tensor).view("int16").tolist() == [2, 3, 4, 5]


def test_a_tensor_is_there_while_its_storage_holds_it() -> None:
    assert is_there(torch.zeros(3, 4).t()[1:])
    assert is_there(torch.zeros(1).expand(5))
    assert is_there(torch.empty(0))
    gone = torch.zeros(8)
    gone.untyped_storage().resize_(16)
    assert not is_there(gone)
    assert is_there(gone[:4])
