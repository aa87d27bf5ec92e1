"""Where a CPU would refuse an index, nothing is called that an accelerator would die of; all else is left alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from hypocenter.replay import in_bounds
from hypocenter.replay.impossible import ReplayImpossible
from hypocenter.replay.in_bounds import InBounds, OutOfBounds
from hypocenter.testing import check_relations

TABLE = torch.arange(12.0).view(3, 4)


def index(*values):
    return torch.tensor(values)


BY_INDEX = {
    "row": lambda i: TABLE[index(i, 0)],
    "column": lambda i: TABLE[:, index(0, i)],
    "after a mask": lambda i: TABLE.view(3, 2, 2)[torch.ones(3, 2, dtype=torch.bool), index(i)],
    "assigned": lambda i: TABLE.clone().index_put((index(i),), torch.zeros(1, 4)),
    "embedding": lambda i: functional.embedding(index(i), TABLE),
    "bag": lambda i: functional.embedding_bag(index(i, 0), TABLE, index(0)),
    "select": lambda i: TABLE.index_select(1, index(i)),
    "add": lambda i: TABLE.index_add(0, index(i), torch.ones(1, 4)),
    "gather": lambda i: TABLE.gather(1, index(i).view(1, 1)),
    "scatter": lambda i: TABLE.scatter(0, index(i).view(1, 1), 1.0),
    "scatter_add": lambda i: TABLE.clone().scatter_add_(1, index(i).view(1, 1), torch.ones(1, 1)),
    "take": lambda i: TABLE.take(index(i)),
    "labels": lambda i: functional.cross_entropy(TABLE, index(0, i, 1)),
    "labels in place": lambda i: functional.cross_entropy(TABLE.view(1, 3, 2, 2), index(0, 1, i, 0).view(1, 2, 2)),
    "ignored": lambda i: functional.cross_entropy(TABLE, index(0, i, 1), ignore_index=7),
    "counts": lambda i: TABLE.repeat_interleave(index(1, i, 1), 0),
}


def _refuses(ask, i):
    try:
        ask(i)
    except (IndexError, RuntimeError):
        return True
    return False


@pytest.mark.parametrize("name", BY_INDEX)
@given(i=st.integers(-20, 20))
def test_it_refuses_what_a_cpu_refuses_and_nothing_else(name, i):
    expected = _refuses(BY_INDEX[name], i)
    with InBounds():
        if expected:
            with pytest.raises((OutOfBounds, RuntimeError)):
                BY_INDEX[name](i)
        else:
            BY_INDEX[name](i)


@given(p=st.floats(-1, 2, width=32))
def test_probabilities(p):
    with InBounds():
        if 0 <= p <= 1:
            functional.binary_cross_entropy(torch.tensor([p]), torch.ones(1))
            torch.bernoulli(torch.tensor([p]))
        else:
            with pytest.raises(OutOfBounds):
                functional.binary_cross_entropy(torch.tensor([p]), torch.ones(1))
            with pytest.raises(OutOfBounds):
                torch.bernoulli(torch.tensor([p]))


def test_operators_of_others_that_take_whole_numbers_on_a_device_are_not_called(monkeypatch):
    with torch.library._scoped_library("hypocenter_test", "FRAGMENT") as library:
        library.define("rows(Tensor table, Tensor at) -> Tensor")
        library.impl("rows", lambda table, at: torch.empty_like(table), "Meta")
        library.impl("rows", lambda table, at: table[at], "CPU")
        with InBounds():
            torch.ops.hypocenter_test.rows(TABLE, index(1))  # of a CPU: it says so itself
        monkeypatch.setattr(in_bounds, "_HOST", ("cpu",))
        with InBounds(), pytest.raises(ReplayImpossible, match="out of bounds"):
            torch.ops.hypocenter_test.rows(TABLE.to("meta"), index(1).to("meta"))


class _Picks(nn.Module):
    """Where it reads in its table is right only for the samples of the program."""

    def __init__(self):
        super().__init__()
        self.linear, self.table = nn.Linear(2, 4), nn.Parameter(torch.ones(64, 4))

    def forward(self, x, at):
        return self.linear(x) + self.table[at + 999 * (at.diff() == 0).any()]


@pytest.mark.parametrize("is_on_device", [False, True])
def test_relations_run_in_bounds_where_parameters_lie_on_a_device(monkeypatch, is_on_device):
    monkeypatch.setattr(in_bounds, "_is_on_device", lambda event: is_on_device)
    model, at = _Picks(), torch.arange(6)

    looked = check_relations(model, (torch.randn(6, 2), at), lambda out: out.square().mean())

    told = " ".join(looked.not_asked.values())
    assert ("is out of bounds for a size of 64" in told) is is_on_device
