"""Edges of a batch of graphs that reach into another graph are told of; other numbers beside edges are not."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import torch
from torch import nn

import hypocenter
from hypocenter.session.observers.graph_edges import GraphEdges
from hypocenter.tap.clock import Clock
from tests.session.observers.test_laws import findings

N_GRAPHS, N_NODES = 4, 6


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Linear(3, 8), nn.Linear(8, 1)

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor, graph: torch.Tensor) -> torch.Tensor:
        h = self.embed(nodes)
        h = h + torch.zeros_like(h).index_add_(0, edges[1], h[edges[0]]).tanh()
        return self.out(torch.zeros(N_NODES * N_GRAPHS, 8).index_add_(0, graph, h))


def batch(offset: int, *, are_sorted: bool = True, all_cross: bool = False) -> list[torch.Tensor]:
    """Return nodes, edges and the number of each node's graph; a ring of the first nodes of each graph."""
    ring = torch.arange(N_NODES - 1)
    own = torch.stack([ring, ring.roll(1)])
    edges = torch.cat([own + g * offset for g in range(N_GRAPHS)], 1)
    graph = torch.arange(N_GRAPHS).repeat_interleave(N_NODES)
    if all_cross:
        edges = torch.stack([edges[0], (edges[0] + N_NODES) % (N_NODES * N_GRAPHS)])
    if not are_sorted:
        graph = graph.roll(2)
    return [torch.randn(N_NODES * N_GRAPHS, 3), edges, graph]


def told(offsets: list[int], out: Path, **how: bool) -> list[tuple[str, str, int]]:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    with contextlib.redirect_stderr(None), hypocenter.watch(model, optimizer, out=str(out), relations="never"):
        for offset in offsets:
            optimizer.zero_grad()
            model(*batch(offset, **how)).square().mean().backward()
            optimizer.step()
    return [(f.code, f.severity, f.step) for f in findings(out) if "edges" in f.title]


RIGHT, WRONG = N_NODES, N_NODES - 1  # nodes that are counted of each graph: the last of each has no edge


@pytest.mark.parametrize(
    ("offsets", "step"), [([RIGHT] * 5 + [WRONG] * 3, 5), ([WRONG] * 8, 0), ([WRONG, RIGHT] * 3, 0)],
    ids=["later", "from the start", "now and then"],
)  # fmt: skip
def test_edges_into_another_graph(offsets: list[int], step: int, tmp_path: Path) -> None:
    assert told(offsets, tmp_path) == [("HC241", "warning", step)]


@pytest.mark.parametrize("how", [{"are_sorted": False}, {"all_cross": True}], ids=["no graphs", "between graphs"])
def test_numbers_of_something_else(how: dict[str, bool], tmp_path: Path) -> None:
    assert told([WRONG] * 8, tmp_path, **how) == []


def test_positions_are_no_graphs() -> None:
    """Two texts that are alike, and the places in them, look like edges and numbers of graphs."""
    edges = GraphEdges(Clock(), lambda *_: None)
    for second in (torch.arange(6), torch.arange(6), torch.arange(6), torch.arange(6).roll(1)):
        edges.look([("in[0]", torch.stack([torch.arange(6), second]), torch.empty(0)),
                    ("position_ids", torch.arange(6), torch.empty(0))])  # fmt: skip

    assert edges.take(4) == []


def test_edges_within_their_graphs(tmp_path: Path) -> None:
    assert told([RIGHT] * 8, tmp_path) == []
