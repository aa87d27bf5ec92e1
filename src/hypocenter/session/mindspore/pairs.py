"""Of which batches inputs and labels of MindSpore are: see hypocenter.session.observers.pairs.

What a program computes outside of a gradient function is not seen. So only tensors are spoken of that come from the
iterator of a data set as they are, and only where that is known of all that the model is given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore as ms  # pyright: ignore[reportMissingImports]

from hypocenter.nouns import Source
from hypocenter.replay.mindspore.host import address
from hypocenter.session.mindspore.seams import Context
from hypocenter.session.observers import pairs
from hypocenter.tap.marks import NONE, Marks
from hypocenter.tap.mindspore.dataset_batches import DatasetBatches
from hypocenter.tap.mindspore.tape import GradCall, tensors
from hypocenter.tap.source import source_of


class Pairs(pairs.Pairs[Context]):
    """Hears which arguments of a gradient function go into a model; the others are labels."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._batches = DatasetBatches()
        self._undos: list[Callable[[], None]] = []
        self._inputs: list[Any] = []

    def attach(self) -> Callable[[], None]:
        """Hear of batches; patches are taken off with the session's."""
        self._batches.attach(self.context.patches)
        return self._stop

    def begin_call(self, cell: Any) -> None:
        """Hear what models are given from here on: the forward of a training cell may run before its micro-batch."""
        self._stop()
        self._inputs = []
        if self.is_due:
            models = (
                each for each in self.context.names.roots() if next(iter(each.get_parameters()), None) is not None
            )
            self._undos = [self.context.after_calls.add(model, self._called) for model in models]

    def begin_microbatch(self, call: GradCall) -> None:
        """Hear it from here on."""
        if not self._undos:
            self.begin_call(call)

    def end_call(self, cell: Any) -> None:
        """Hear no more."""
        self._stop()

    def _called(self, model: Any, args: Any, output: Any) -> None:
        self._inputs += [each for each in tensors(args) if not isinstance(each, ms.Parameter)]

    def _stop(self) -> None:
        undos, self._undos = self._undos, []
        for undo in undos:
            undo()

    def forward_done(self, call: GradCall) -> None:
        """Compare what the models were given with the rest."""
        if not self._undos:
            return
        self._stop()
        inputs, self._inputs = self._inputs, []
        by_place = {address(each): each for each in tensors((call.args, dict(call.kwargs)))}
        given = [by_place.get(address(each)) for each in inputs]
        marks = NONE.union(*map(self._marks, given)) if all(map(self._marks, given)) else NONE
        places = set(map(address, inputs))
        labels = [(each, self._marks(each)) for place, each in by_place.items() if place not in places]
        self.judge([each for each in given if each is not None], marks, labels, lambda: _line(call.fn))

    def _marks(self, tensor: Any) -> Marks:
        batch = None if tensor is None else self._batches.batch_of(tensor)
        return NONE if batch is None else frozenset([("batch", batch)])


def _line(function: Any) -> Source | None:
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return None if code is None else source_of(code.co_filename, code.co_firstlineno, code.co_name)
