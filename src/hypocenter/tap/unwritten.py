"""The search for who reads fresh memory before it is written, in any framework: filled with NaN, it makes NaN."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Protocol, TypeVar


class Place(Protocol):
    """Where an operator ran."""

    @property
    def site(self) -> str:
        """The module."""
        ...

    @property
    def code(self) -> CodeType | None:
        """The user's code."""
        ...

    @property
    def line(self) -> int:
        """In it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class UnwrittenRead:
    """An operator that read memory which nobody had written."""

    op: str  # that read it: aten.mul.Tensor
    place: Place
    maker: str  # what gave the memory: aten.empty.memory_format
    made_at: Place


class Filling(Protocol):
    """What fills fresh memory with NaN while a step is done again."""

    @property
    def n_fresh(self) -> int:
        """How many fresh tensors there were."""
        ...

    @property
    def read(self) -> UnwrittenRead | None:
        """The first operator whose output holds NaN because of a tensor that was filled."""
        ...

    @property
    def handed_on(self) -> UnwrittenRead | None:
        """The first tensor that was filled and that no operator has read, as it is a result itself; None without."""
        ...

    def clean(self) -> None:
        """Leave none of our NaN in memory that the program may get next."""
        ...


FillingT = TypeVar("FillingT", bound=Filling)


def find_read(
    is_as_before: Callable[[FillingT], bool], filled: Callable[[Callable[[int], bool]], FillingT]
) -> UnwrittenRead | None:
    """Return who reads fresh memory unwritten; None: nobody whose result matters.

    The step must be finite as it is. The tensor that makes the difference is found by halves.

    Args:
        is_as_before: does the step again within the mode; True: loss and gradients are as they were.
        filled: makes a mode that fills the fresh tensors of the numbers, in order from 0, that are chosen, and makes
            the others zero.
    """

    def run(begin: int, end: int) -> tuple[bool, int, UnwrittenRead | None]:
        mode = filled(lambda number: begin <= number < end)
        try:
            return is_as_before(mode), mode.n_fresh, mode.read or mode.handed_on
        finally:
            mode.clean()

    begin, end = 0, 1 << 62
    is_same, n_fresh, found = run(begin, end)
    if is_same or not run(0, 0)[0]:  # with zeros it must be as before, or nothing can be told apart
        return None if is_same else found
    end = n_fresh
    while end - begin > 1:
        middle = (begin + end) // 2
        is_same, _, first = run(begin, middle)
        begin, end = (middle, end) if is_same else (begin, middle)
        found = found if is_same else first
    is_same, _, last = run(begin, end)
    return found if is_same else last
