"""The law of graphs: an edge joins two nodes of one graph. For HC241.

Graphs of a batch lie in a row, and each node has the number of its graph. Who counts the nodes of the graphs before
otherwise than they are (by the largest node that an edge names, or before padding) lets edges reach into other graphs.
Looked at in what a model is given in each micro-batch: whole numbers [2, edges], and [nodes] that begin at 0 and grow
by 0 or 1. Where most edges cross from the start on, the numbers are of something else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hypocenter.detect import relation_rows as rows
from hypocenter.nouns import Reading, replace
from hypocenter.session.observers.optimizer_rows import number_row
from hypocenter.tap.clock import Clock

LOOKS = 4  # micro-batches, before anything is said
MOST_CROSSING = 0.5  # share of edges: more of them cross where the numbers are no graphs'
_WHOLE = (torch.int64, torch.int32)


@dataclass(slots=True)
class GraphEdges:
    """Follows the edges that a model is given; writes one row.

    Args:
        clock: of the session.
        ride: takes float32 numbers of a device to the host with those of the step.
    """

    clock: Clock
    ride: Callable[[Tensor, Callable[[Sequence[float]], None]], None]
    n_clean: int = 0  # micro-batches without a crossing edge
    n_crossed: int = 0
    largest: float = 0.0  # share of crossing edges
    first: int | None = None  # step at which some crossed
    said: str = ""  # of the latest
    is_told: bool = False

    def look(self, given: Iterable[tuple[str, Tensor, Tensor]]) -> None:
        """Look at what a model was given: name, tensor, and a sample of it."""
        edges: tuple[str, Tensor] | None = None
        numbers: list[tuple[str, Tensor]] = []
        for name, tensor, _ in given:
            if tensor.dtype in _WHOLE and not name.startswith("loss"):  # labels
                if tensor.dim() == 2 and tensor.shape[0] == 2 and tensor.shape[1] > 2:
                    edges = edges or (name, tensor)
                elif tensor.dim() == 1 and len(tensor) > 2:
                    numbers.append((name, tensor))
        if edges is None or self.is_told:
            return
        for name, groups in numbers:
            if groups.device != edges[1].device:
                continue
            crossing = _crossing(edges[1], groups)
            if edges[1].device.type == "cpu":
                self._note(crossing.tolist(), edges[1].shape[1], edges[0], name)
            else:
                reader = _Reader(self._note, edges[1].shape[1], edges[0], name)
                self.ride(crossing, reader)

    def _note(self, told: Sequence[float], n_edges: int, edges: str, groups: str) -> None:
        are_graphs, n = told[0], round(told[1])
        if not are_graphs:
            return
        if n == 0:
            self.n_clean += 1
            return
        self.n_crossed, self.largest = self.n_crossed + 1, max(self.largest, n / n_edges)
        self.first = self.clock.step if self.first is None else self.first
        self.said = f"{n} of {n_edges} edges of {edges} join nodes of two graphs, by {groups}"

    def take(self, step: int) -> list[Reading]:
        """Return the row, once there is something to tell."""
        n = self.n_clean + self.n_crossed
        if self.is_told or self.first is None or n < LOOKS or not (self.n_clean or self.largest < MOST_CROSSING):
            return []
        self.is_told = True
        before = f"; in {self.n_clean} micro-batches none did" if self.n_clean else ""
        row = number_row("", rows.LOSS, step, self.clock.next_order(), self.largest, call=step - self.first)
        remedy = "begin the nodes of a graph at the number of nodes before it, also of those that no edge names"
        return [replace(row, op="HC241", names=("edges join different graphs of a batch", self.said + before, remedy))]


class _Reader:
    """Hands on the numbers that have arrived. Holds no tensor."""

    def __init__(self, note: Callable[..., None], n_edges: int, edges: str, groups: str) -> None:
        self._note, self._of = note, (n_edges, edges, groups)

    def __call__(self, numbers: Sequence[float]) -> None:
        self._note(numbers, *self._of)


def _crossing(edges: Tensor, groups: Tensor) -> Tensor:
    """Return whether these numbers are those of graphs, and how many edges cross: float32 [2], on their device."""
    with torch.no_grad():
        steps, n = groups[1:] - groups[:-1], len(groups)
        are_graphs = (groups[0] == 0) & (steps >= 0).all() & (steps <= 1).all() & (groups[-1] > 0)
        are_graphs = are_graphs & (steps == 0).any()  # else these are positions
        are_graphs = are_graphs & (edges >= 0).all() & (edges < n).all()
        ends = groups[edges.clamp(0, n - 1)]
        return torch.stack([are_graphs.float(), (ends[0] != ends[1]).sum().float()])
