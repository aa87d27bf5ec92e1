"""Trained parameters of MindSpore that no optimizer can hold: see hypocenter.session.observers.unheld.

MindSpore computes gradients of those parameters alone that it is asked for, which are the registered ones. What lies in
a list is found in the graph of the loss, which leads to it all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import Any

import mindspore as ms  # pyright: ignore[reportMissingImports]
from mindspore import nn  # pyright: ignore[reportMissingImports]

from hypocenter.session.events import Update
from hypocenter.session.mindspore.seams import Context
from hypocenter.session.observers import unheld
from hypocenter.session.observers.unheld import LAST, contents
from hypocenter.tap.mindspore.autograd import leaf_of, leaves
from hypocenter.tap.mindspore.names import walk
from hypocenter.tap.mindspore.tape import GradCall
from hypocenter.tap.weakly import Ref


class Unheld(unheld.Unheld[Context]):
    """Asks autograd whom the graph of each loss leads to."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._before: set[int] = set()  # ids of the parameters that there were before a forward

    def begin_microbatch(self, call: GradCall) -> None:
        """Note which parameters there are."""
        step = self.context.clock.step
        if step <= LAST and self.is_due(step):
            self._before = {id(parameter) for _, parameter in self.context.names.parameters()}

    def forward_done(self, call: GradCall) -> None:
        """Note the leaves of the graph while it is there, where some of them may be outside."""
        step, names = self.context.clock.step, self.context.names
        if not (step <= LAST and self.is_due(step) and call.has_value):
            return
        registered = [(name, parameter) for name, parameter in names.parameters() if parameter.requires_grad]
        made = [parameter for _, parameter in registered if id(parameter) not in self._before]
        if step:  # in the first one a model may be completed
            self.made = {id(parameter): Ref(parameter) for parameter in made}
        inside = [
            (each[0], each[2])
            for at in names.cells()
            for each in contents(*at, _parameters_of)
            if each[2].requires_grad
        ]
        if not made and not inside:
            return
        led_to = leaves(call.loss)
        found = {id(p): (Ref(p), name) for name, p in (*inside, *registered) if leaf_of(p) in led_to}
        self.leaves.update(found)

    def has_gradient(self, update: Update, parameter: Any) -> bool:
        """Return whether it has none only because nobody has asked for it: what a program asks for it may use."""
        return all(parameter is not weight for call in update.microbatches for weight in call.weights)

    def in_containers(self, models: Sequence[Any], own: Set[int]) -> list[tuple[str, str, Any]]:
        """Return what cells hold that are trained beside it: a loss that compares features trains no layer."""
        named, cells = self.context.framework.named, {id(cell) for model in models for _, cell in walk(model)}
        return [
            each
            for name, cell in self.context.names.cells()
            if id(cell) in cells and any(id(p) in own for p in named(cell)[1].values())
            for each in contents(name, cell, _parameters_of)
        ]


def _parameters_of(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name below it, parameter)."""
    if isinstance(thing, nn.Cell):
        yield from ((f".{name}", p) for name, p in thing.parameters_and_names())
    elif isinstance(thing, ms.Parameter):
        yield "", thing
