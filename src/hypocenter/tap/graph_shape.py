"""The shape of an autograd graph: what was done, of what, without any value."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import torch


class GraphShape(contextlib.nullcontext[None]):
    """A mode of a replay that only notes the shape of the graph which its backward goes through.

    Attributes:
        shape: equal for equal graphs, in this process; None until the forward is over.
    """

    def __init__(self) -> None:
        super().__init__()
        self.shape: int | None = None

    def restart(self) -> None:
        """It is done again from the beginning."""
        self.shape = None

    def ends_in(self, roots: Iterable[torch.Tensor]) -> None:
        """Forward is over, and backward starts from these."""
        self.shape = shape_of(roots)


def shape_of(roots: Iterable[torch.Tensor]) -> int:
    """Return a number for the operations behind these, and for which of them uses the result of which."""
    nodes: list[Any] = [root.grad_fn for root in roots if root.grad_fn is not None]
    numbers: dict[Any, int] = {node: number for number, node in enumerate(nodes)}
    found: list[Any] = []
    for node in nodes:  # which grows
        found.append(type(node))
        for behind, _ in node.next_functions:
            number = numbers.get(behind, -1) if behind is not None else None  # None: it needs no gradient
            if number == -1:
                number = numbers[behind] = len(nodes)
                nodes.append(behind)
            found.append(number)
    return hash(tuple(found))
