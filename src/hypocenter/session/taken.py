"""Gradients that a program with an optimizer asks for (`torch.autograd.grad`) and puts into `.grad` itself.

Zero-bubble pipelines do, and loops that combine the gradients of several losses. A program may also ask for gradients
only to look at them: those are no micro-batch. Which it was is known by what becomes of the parameters' `.grad`, so
each call is kept in mind until the next forward, backward or update.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hypocenter.tap.tape import Microbatch, Tape, version_of
from hypocenter.tap.weakly import Ref

LOOKED_AT = 16  # parameters of one call: who sets one sets all


@dataclass(frozen=True, slots=True)
class _Asked:
    """A parameter whose gradient was asked for, and what its `.grad` was then."""

    parameter: weakref.ref[torch.Tensor]
    before: weakref.ref[torch.Tensor] | None
    version: int

    @property
    def is_set(self) -> bool:
        """Whether the program has put something there since."""
        parameter = self.parameter()
        now = None if parameter is None else parameter.grad
        if now is None:
            return False
        return self.before is None or self.before() is not now or version_of(now) != self.version


class TakenGradients:
    """Calls of `torch.autograd.grad` of which it is not known yet whether they are micro-batches."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._waiting: list[Microbatch] = []
        self.asked: list[_Asked] = []

    def note(self, microbatch: Microbatch) -> None:
        """Note that gradients of a result of this step are asked for; a call on the same result replaces the last."""
        if any(slot is not None for slot in microbatch.roots):
            self._waiting = [each for each in self._waiting if each.roots != microbatch.roots] + [microbatch]

    def ask(self, inputs: Sequence[object]) -> None:
        """Note what `.grad` of these parameters is before the call that asks for their gradients."""
        if not self._waiting:
            return
        parameters = [each for each in inputs if isinstance(each, torch.nn.Parameter)]
        for p in parameters[:LOOKED_AT]:
            before = p.grad
            kept = (None, 0) if before is None else (Ref(before), version_of(before))
            self.asked.append(_Asked(Ref(p), *kept))

    def settle(self) -> list[Microbatch]:
        """Return the calls that have turned out to be micro-batches, and forget them."""
        if not self.asked or not any(each.is_set for each in self.asked):
            return []
        found = self._waiting
        self.clear()
        return found

    def consumed(self, microbatch: Microbatch) -> None:
        """Forget calls that went through a part of this backward's graph: they only looked at something."""
        if self._waiting:
            gone = {position for position, _ in self._tape.slice(microbatch)}
            self._waiting = [m for m in self._waiting if gone.isdisjoint(p for p, _ in self._tape.slice(m))]
            self.asked = self.asked if self._waiting else []

    def clear(self) -> None:
        """Forget all calls: the step is over."""
        self._waiting, self.asked = [], []
