"""What inputs and labels of torch were made of, by the tapes of a step: see hypocenter.session.observers.pairs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hypocenter.nouns import Source
from hypocenter.session.observer import Context
from hypocenter.session.observers import pairs
from hypocenter.session.observers.pairs import Labels
from hypocenter.tap.marks import NONE
from hypocenter.tap.origins import Origins
from hypocenter.tap.source import source_of
from hypocenter.tap.tape import Event, Tape


class Pairs(pairs.Pairs[Context]):
    """Follows all that the program computes with, also before and beside its forward."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._origins = Origins(context.loaded)

    def before_backward(self, roots: Sequence[Tensor]) -> None:
        """A micro-batch's forward is over."""
        if (prelude := self.context.prelude) is None or not self.is_due:
            return
        with torch._C.DisableTorchFunction():
            self._look(prelude, [slot for root in roots if (slot := self.context.tape.slot(root)) is not None])

    def _look(self, prelude: Tape, roots: Sequence[int]) -> None:
        tape = self.context.tape
        self._origins.follow(prelude)
        made = self._origins.follow(tape)
        tensors: list[Tensor] = []
        marks = NONE
        labels: Labels = []
        source: Event | None = None
        for _, event in tape.making(*roots):
            given = [*self._origins.given(tape, event)]
            if event.module is not None and not any(slot in tape.with_graph for slot in event.needs):
                tensors += [tensor for tensor, _ in given]
                marks = marks.union(*(each for _, each in given), *(made.get(slot, NONE) for slot in event.needs))
                continue
            found = given + [(None, made[n]) for n in event.needs if n in made and n not in tape.with_graph]
            source = source or (event if found else None)
            labels += found
        self.judge(tensors, marks if made else NONE, labels, lambda: _line(source))


def _line(event: Event | None) -> Source | None:
    if event is None or event.code is None:
        return None
    return source_of(event.code.co_filename, event.line, event.code.co_name)
