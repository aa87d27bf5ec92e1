"""A graph of a batch does not depend on the others.

What it means
    Graphs of one batch lie one after the other: all their nodes, an index that says which graph each node is of, and
    edges between nodes. Edges are numbered within each graph, and in the batch the number of the nodes before it is to
    be added. Where that was forgotten, all edges lie among the nodes of the first graphs, which move each other, and
    the others have none.

How it is decided
    An index that counts up from 0, and edges of which some join nodes of two graphs, while none reaches a node beyond
    the size of the largest graph, and half of the graphs at least have no edge at all. (Edges may also join parts of
    one graph on purpose: those reach all parts.) Then the nodes of every second graph are replaced by others of the
    batch, and the outputs for the other graphs must stay. A model that adds the numbers itself holds.

What to do
    Add the number of the nodes before a graph to its edges, as the collate functions of graph libraries do.

When it is wrong
    Where parts of one graph are pooled, and its edges end at its first parts on purpose.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from hypocenter.relations.facts import CannotTell, Facts
from hypocenter.relations.parts import Rows
from hypocenter.relations.relation import Trial, relation
from hypocenter.relations.subject import Given, Subject

_LEAST = 4  # graphs


@relation("graphs", "HC241", order=6)
def ask(subject: Subject, facts: Facts) -> Iterator[Trial]:
    """Yield a trial that replaces the nodes of every second graph; the outputs for the others must stay."""
    for index in subject.of_model:
        beside = [each for each in subject.of_model if each.place[0] == index.place[0] and each is not index]
        if not _counts_up(index) or not any(_are_without_offset(each, index.tensor) for each in beside):
            continue
        graph, n = index.tensor, int(index.tensor[-1]) + 1
        nodes = torch.arange(len(graph), device=graph.device)
        chosen = torch.where(graph % 2 == 0, (nodes + 1) % len(graph), nodes)
        of_nodes = [each for each in beside if each.tensor.shape[:1] == graph.shape]
        changed = {each.place: each.tensor.index_select(0, chosen.to(each.tensor.device)) for each in of_nodes}
        if all(torch.equal(changed[each.place], each.tensor) for each in of_nodes):
            continue
        yield Trial(
            changed=changed, parts=Rows(torch.arange(n, device="cpu") % 2 == 1),
            what="nodes of other graphs replaced", whom="the outputs for the graphs beside them",
            is_located=False,  # what a layer gives is of nodes
        )  # fmt: skip
        return
    raise CannotTell("no edges are known to lie among the first of several graphs")


def _counts_up(given: Given) -> bool:
    """Return whether this is an index that says for each node which graph it is of."""
    index = given.tensor
    if index.dtype not in (torch.int64, torch.int32) or index.dim() != 1 or len(index) <= _LEAST or index[0] != 0:
        return False
    steps = index.diff()
    return bool(((steps == 0) | (steps == 1)).all()) and _LEAST - 1 <= int(index[-1]) < len(index) - 1


def _are_without_offset(given: Given, graph: Tensor) -> bool:
    """Return whether these are edges that join graphs, and reach no further than the largest graph is long."""
    edges = given.tensor
    is_index = edges.dtype in (torch.int64, torch.int32) and edges.dim() == 2 and len(edges) == 2
    if not is_index or not edges.numel() or bool((edges < 0).any()) or int(edges.max()) >= len(graph):
        return False
    sizes, of_edges = graph.bincount(), graph[edges.long()]
    is_joined = bool((of_edges[0] != of_edges[1]).any())
    return is_joined and int(edges.max()) < int(sizes.max()) and 2 * len(of_edges.unique()) <= len(sizes)
