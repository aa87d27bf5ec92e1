"""The op trace of a replayed micro-batch as plain data: which op read what from whom, and what was not finite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypocenter.nouns import Phase

NAN, POSINF, NEGINF, LITERAL_POSINF, LITERAL_NEGINF = 1, 2, 4, 8, 16
"""Kinds of non-finite values. Literal: descends only from constants that the program wrote, such as a mask."""

REAL = NAN | POSINF | NEGINF

UNSEEN = "unseen kernel"
"""Stands in a trace for what no framework's dispatcher showed, and must have written: its results were read."""
UNWRITTEN = "unwritten memory"
"""Stands in a trace for memory that nothing has ever written to, and that was read."""


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
        """The non-finite kinds in its inputs that are not constants of the program."""
        found = 0
        for edge in self.inputs:
            found |= edge.bits
        return found & REAL


def is_transition(op: TracedOp) -> bool:
    """Return whether values stop being finite here (a kind no input had), or a bad leaf is first used here."""
    return bool(op.real) and (any(e.producer < 0 and e.real for e in op.inputs) or appears([op.bits], op.inputs))


def appears(outputs: Sequence[int], inputs: Sequence[Edge]) -> bool:
    """Return whether the results of an op have a kind of non-finite values that no input had."""
    made = incoming = 0
    for bits in outputs:
        made |= bits & REAL
    for edge in inputs:
        incoming |= edge.real
    return bool(made) and (incoming == 0 or bool(made & NAN and not incoming & NAN))


def classify(found: int, inputs: tuple[Edge, ...], literal: int, *, flips_sign: bool) -> int:
    """Split the infinities of an output into real ones and those that descend from constants of the program.

    Args:
        found: kinds of non-finite values in the output.
        literal: infinite numbers among the operator's own arguments.
        flips_sign: the operator can turn +inf into -inf.
    """
    if not found & (POSINF | NEGINF):
        return found
    real_in = 0
    for edge in inputs:
        real_in |= edge.real
        literal |= edge.bits & (LITERAL_POSINF | LITERAL_NEGINF)
    if flips_sign and literal:
        literal = LITERAL_POSINF | LITERAL_NEGINF
    bits = found & NAN
    for kind, constant in ((POSINF, LITERAL_POSINF), (NEGINF, LITERAL_NEGINF)):
        if found & kind:
            if literal & constant:
                bits |= constant | (kind if real_in else 0)
            else:
                bits |= kind
    return bits
