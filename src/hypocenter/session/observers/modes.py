"""In which mode, training or evaluation, the modules of torch run that an update is made of. For HC237."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hypocenter.session import modes
from hypocenter.session.observer import Context, Update

MODULES = 16  # called from outside in one micro-batch: a program that calls more is not followed


class Modes(modes.Modes[Context]):
    """Reads off the tape in which mode modules were called."""

    def called(self, update: Update) -> Sequence[tuple[Any, bool]]:
        """Return the outermost modules of the last micro-batch, and whether each was in training mode.

        So is a module in evaluation mode where one in it that asks for the mode is in training: the rest is not, on
        purpose (a frozen backbone, dropout while evaluating).
        """
        found: list[tuple[Any, bool]] = []
        for microbatch in update.microbatches[-1:]:
            for _, event in self.context.tape.slice(microbatch):
                if event.training is not None and len(found) < MODULES:
                    is_training = event.training or any(each.training for each in _modal(event.function))
                    found.append((event.function, is_training))
        return found

    def n_modal(self, module: Any) -> int:
        """Count modules that act otherwise in training: their `forward` asks for the mode; 0 where all is frozen."""
        parameters = list(module.parameters())
        if parameters and not any(each.requires_grad for each in parameters):
            return 0  # it goes on to be called, and is not trained any more
        return sum(1 for _ in _modal(module))

    def name_of(self, module: Any) -> str:
        """Return the module's path; "" for the model itself, or outside of all models."""
        return self.context.names.module_name(module) or ""


def _modal(module: Any) -> Iterator[Any]:
    """Yield the modules in this one that act otherwise in training."""
    for each in module.modules():
        asked = getattr(getattr(type(each).forward, "__code__", None), "co_names", ())
        if "training" in asked and getattr(each, "p", 1.0) != 0.0:
            yield each
