"""What a tap asks of a reducer. The taps are given one: they do not import `summary`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from hypocenter.nouns import Summary


class Reducer(Protocol):
    """Makes Summaries of MindSpore tensors on their device, without waiting for it."""

    def add(self, tensor: Any, /) -> int:
        """Queue a tensor as it is now, and return its ticket."""
        ...

    def mark(self, tensor: Any, /) -> bytes | None:
        """Return a mark that mostly changes when the tensor is written to; None where one would have to wait for it."""
        ...

    def drain(self) -> Sequence[Summary]:
        """Return the summaries of everything queued, by ticket; waits once. Tickets start again at 0."""
        ...
