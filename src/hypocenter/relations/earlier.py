"""Numbers that came into the program's loop before: what is the same at each look is a constant, and of no sample."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from hypocenter.relations.loop_again import CUTS, equal
from hypocenter.tap.loop_tape import LoopTape, Operation

_MOST_LINES, _MOST_NUMBERS = 64, 4096  # lines, and numbers of each


class Earlier:
    """Numbers that came into the loop at earlier looks, by the line: what is the same each time is a constant."""

    def __init__(self) -> None:
        self._seen: dict[tuple[Any, int], Tensor] = {}

    def remember(self, tape: LoopTape) -> None:
        """Keep copies of the small ones, of a bounded number of lines."""
        for operation in tape.operations:
            value = tape.values[operation.makes[0]]
            is_of_interest = value.kind == "entered" or operation.name in CUTS
            key = operation.code, operation.line
            is_small = value.tensor.numel() <= _MOST_NUMBERS and value.is_there
            if is_of_interest and is_small and (key in self._seen or len(self._seen) < _MOST_LINES):
                self._seen[key] = value.tensor.detach().clone()

    def is_other(self, operation: Operation, tensor: Tensor) -> bool:
        """Return whether this line gave other numbers before."""
        was = self._seen.get((operation.code, operation.line))
        return was is not None and was.dim() == tensor.dim() and not equal(was, tensor.detach())
