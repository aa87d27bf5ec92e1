"""What a program counts beside the graph: a sum of numbers of one sign, with no parameter in it. For HC236.

A number of labels, a mask's sum, the length of a window divide a loss, and no gradient goes through them. A short
format stops to count: bfloat16 has no 257, so that 256 + 1 is 256. A difference of large numbers is as far off and
right; so what counts here has terms that do not cancel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from hypocenter.replay.shadow import Shadow, Step
from hypocenter.tap.gradients import to_host
from hypocenter.tap.op_tensors import tensors_among

_ADDS = frozenset({"add", "add_", "sum", "cumsum", "cumsum_"})
CANCELS = 1.01  # terms of one sign: the sum of their sizes over the size of their sum, to rounding


class Counting(Shadow):
    """A shadow that also notes of each sum whether its terms cancel.

    Attributes:
        terms: by number of a step, the sum of the sizes of its terms over the size of its result; on the host once
            `finish` was called.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.terms: dict[int, Any] = {}

    def restart(self) -> None:
        """The replay begins anew."""
        super().restart()
        self.terms = {}

    def _compare(self, func: Any, given: Sequence[Tensor], out: Any, twin: Any) -> None:
        number = len(self.steps)
        super()._compare(func, given, out, twin)
        if len(self.steps) == number or func.overloadpacket.__name__ not in _ADDS or self.steps[number].is_learned:
            return
        (result,) = tensors_among(twin)[:1]
        numbers = [t for t in given if t.is_floating_point()]
        self.terms[number] = sum(_size(t, result) for t in numbers) / result.abs().sum().double()

    def finish(self) -> None:
        """Bring all numbers to the host."""
        super().finish()
        self.terms = dict(zip(self.terms, to_host(list(self.terms.values())), strict=True))


def _size(term: Tensor, result: Tensor) -> Tensor:
    """Return the sum of the sizes of what a term adds to a result, which it may be broadcast to."""
    return term.detach().abs().sum().double() * max(1, result.numel() // max(1, term.numel()))


def first_miscounted(steps: Sequence[Step], terms: Mapping[int, float], told: float) -> tuple[int, int] | None:
    """Return the numbers of the first sum beside the graph that is far off, and of the one where its line ends up.

    Args:
        terms: as of Counting.
        told: how far off, relative; its operands are not.
    """
    learned = set[int]()
    first: int | None = None
    last = -1
    for number, each in enumerate(steps):
        if each.is_learned or not learned.isdisjoint(each.made_by):
            learned.add(number)
            continue
        if each.error < told or not terms.get(number, CANCELS + 1.0) <= CANCELS:
            continue
        if first is None and max(each.before, default=0.0) < told:
            first = last = number
        elif first is not None and last in each.made_by and each.op == steps[first].op:
            last = number
    return None if first is None else (first, last)
