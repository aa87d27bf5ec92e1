"""The op trace of a replayed micro-batch as plain data: which op read what from whom, and what was not finite."""

from __future__ import annotations

from dataclasses import dataclass

from hypocenter.nouns import Phase

NAN, POSINF, NEGINF, LITERAL_POSINF, LITERAL_NEGINF = 1, 2, 4, 8, 16
"""Kinds of non-finite values. Literal: descends only from constants that the program wrote, such as a mask."""

REAL = NAN | POSINF | NEGINF


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """What an op read: from which producer (an op's index, or -1 - leaf index), and what was not finite in it."""

    producer: int
    bits: int = 0

    @property
    def real(self) -> int:
        """The non-finite kinds that are not constants of the program."""
        return self.bits & REAL


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedOp:
    """One executed op of the trace."""

    index: int
    op: str  # aten.mul.Tensor
    phase: Phase = "forward"
    bits: int = 0  # of all outputs
    inputs: tuple[Edge, ...] = ()
    zero_factor: bool = False  # a product whose NaNs all come from a factor that is exactly 0 there
    node: str = ""  # autograd node in backward
    is_collective: bool = False  # its inputs go to other ranks, its outputs come from them

    @property
    def real(self) -> int:
        """Non-finite kinds in its output that are not constants of the program."""
        return self.bits & REAL

    @property
    def incoming(self) -> int:
        """Non-finite kinds in its inputs that are not constants of the program."""
        found = 0
        for edge in self.inputs:
            found |= edge.bits
        return found & REAL
