"""What a tap asks of a reducer. The taps are given one: they do not import `summary`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from hypocenter.nouns import Summary
from hypocenter.tap.spread.where import Where


class Reducer(Protocol):
    """Makes Summaries of tensors on their device, without waiting for it."""

    def add(self, tensor: Tensor, where: Where | None = None, /) -> int | None:
        """Queue a tensor; return its ticket, or None if nothing can be said of it.

        Args:
            where: it lies among the parts that other ranks hold; None in a process that is alone.
        """
        ...

    def drain(self) -> Mapping[int, Summary] | Sequence[Summary]:
        """Return the summaries of everything queued, by ticket; waits once. Tickets start again at 0."""
        ...
