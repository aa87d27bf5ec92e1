"""Edges that are not moved behind the first graphs of a batch join them; edges on purpose are not spoken of."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from hypocenter.testing import RelationBroken, check_relations

SIZES = torch.tensor([4, 6, 5, 8, 7, 4])
FIRST = SIZES.cumsum(0) - SIZES
GRAPH = torch.repeat_interleave(torch.arange(len(SIZES)), SIZES)
OF_EDGES = GRAPH  # each node begins one
NOT_ASKED = "no edges are known to lie among the first of several graphs"


class Net(nn.Module):
    """Each node hears of the one before it; graphs are sums over nodes."""

    def __init__(self, *, moves_edges: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.head = nn.Linear(3, 8), nn.Linear(8, 8), nn.Linear(8, 1)
        self.moves_edges = moves_edges

    def forward(self, x, edges, graph):
        edges = edges + FIRST[OF_EDGES] if self.moves_edges else edges
        h = self.first(x).relu()
        h = h + self.second(torch.zeros_like(h).index_add(0, edges[1], h[edges[0]])).relu()
        return self.head(torch.zeros(len(SIZES), 8).index_add(0, graph, h)).squeeze(-1)


def rings(*, is_moved: bool) -> torch.Tensor:
    """Return one ring for each graph, of its own numbers or of those in the batch."""
    found = [torch.stack([torch.arange(n), (torch.arange(n) + 1) % n]) for n in SIZES.tolist()]
    return torch.cat([ring + int(first) * is_moved for ring, first in zip(found, FIRST, strict=True)], 1)


def given(edges: torch.Tensor) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(1)
    return torch.randn(len(GRAPH), 3), edges, GRAPH


def test_edges_that_are_not_moved():
    with pytest.raises(RelationBroken, match="graphs") as raised:
        check_relations(Net(), given(rings(is_moved=False)), functional.mse_loss, labels=torch.randn(len(SIZES)))

    assert [each.code for each in raised.value.looked.broken] == ["HC241"]


def test_edges_that_the_model_moves():
    model = Net(moves_edges=True)

    looked = check_relations(model, given(rings(is_moved=False)), functional.mse_loss, labels=torch.randn(len(SIZES)))

    assert "graphs" in looked.held


def across() -> torch.Tensor:
    """Parts of one graph: a ring through all its nodes."""
    nodes = torch.arange(len(GRAPH))
    return torch.stack([nodes, nodes.roll(-1)])


@pytest.mark.parametrize("edges", [rings(is_moved=True), across()], ids=["moved", "parts of one graph"])
def test_what_is_not_asked(edges):
    looked = check_relations(Net(), given(edges), functional.mse_loss, labels=torch.randn(len(SIZES)))

    assert not looked.broken
    assert looked.not_asked["graphs"] == NOT_ASKED
