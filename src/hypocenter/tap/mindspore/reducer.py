"""What a tap asks of a reducer. The taps are given one: they do not import `summary`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from hypocenter.nouns import Summary


class Reducer(Protocol):
    """mindspore.Tensor -> Summary, on the device, without waiting for it."""

    def add(self, tensor: Any, /) -> int:
        """Queue a tensor as it is now; its ticket."""
        ...

    def mark(self, tensor: Any, /) -> bytes | None:
        """What tells, as a rule, whether it was written to since; None where that cannot be told without waiting."""
        ...

    def drain(self) -> Sequence[Summary]:
        """The summaries of everything queued, by ticket; waits once. Tickets start again at 0."""
        ...
