"""In which mode, training or evaluation, the cells run that an update is made of. For HC237."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypocenter.session import modes
from hypocenter.session.events import Update
from hypocenter.session.mindspore.seams import Context
from hypocenter.tap.mindspore.names import walk
from hypocenter.tap.mindspore.tape import GradCall


class Modes(modes.Modes[Context]):
    """Looks at the mode of the models that gradients of weights were taken for."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._called: list[tuple[Any, bool]] = []
        self._owners: dict[tuple[int, int], list[Any]] = {}  # by first weight and number of models

    def end_microbatch(self, call: GradCall, gradients: Sequence[Any]) -> None:
        """Remember which models this micro-batch went through, and in which mode they were."""
        roots = self.context.names.roots()
        key = id(next(iter(call.weights), None)), len(roots)
        if key not in self._owners:
            weights = {id(weight) for weight in call.weights}
            self._owners[key] = [r for r in roots if any(id(p) in weights for p in r.get_parameters())]
        self._called = [(root, bool(root.training)) for root in self._owners[key]]

    def called(self, update: Update) -> Sequence[tuple[Any, bool]]:
        """Return the models of the last micro-batch and whether each was in training mode, and forget them."""
        found, self._called = self._called, []
        return found

    def n_modal(self, module: Any) -> int:
        """Count the cells that act otherwise in training: their `construct` asks for the mode."""
        return sum(
            "training" in getattr(getattr(type(cell).construct, "__code__", None), "co_names", ())
            and getattr(cell, "p", 1.0) != 0.0
            for _, cell in walk(module)
        )

    def name_of(self, module: Any) -> str:
        """Return "": a model has no name of its own."""
        return ""
