"""The law "update" in MindSpore: what an optimizer holds before it is called, and after it.

Its own weight decay and loss scale are part of the rule: what it is given is what counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import mindspore as ms  # pyright: ignore[reportMissingImports]

from hypocenter.optimizers.options import number
from hypocenter.optimizers.rule import rule_of
from hypocenter.session.events import Update
from hypocenter.session.mindspore.seams import Context
from hypocenter.session.observers import by_rule
from hypocenter.session.observers.by_rule import STEP, Group, mixes
from hypocenter.session.observers.columns import VALUE
from hypocenter.tap.mindspore.optimizers import bases_of, groups_of, loss_scale_of, state_of

_POWERS = "beta_powers"  # which an optimizer keeps; no options of its rule


class ByRule(by_rule.ByRule[Context]):
    """Looks around the whole call of an optimizer."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._gradients: Mapping[int, Any] = {}  # by id of a parameter, in this update
        self._states: Mapping[int, list[tuple[str, Any]]] = {}  # the same

    def before_update(self, update: Update) -> None:
        """Gradients are those that it is given."""
        if self._audits.is_due(update.step):
            self._gradients = {id(parameter): gradient for parameter, gradient in update.gradients}
            self._states = state_of(update.optimizer)
            self.take(update.optimizer, update.step)

    def after_update(self, update: Update) -> None:
        """Its state may be in other tensors than before."""
        if self._gradients and not update.skipped:
            self._states = state_of(update.optimizer)
            self.compare(update.optimizer)
        self._gradients, self._states = {}, {}

    def groups(self, optimizer: Any) -> Iterator[tuple[Group, Sequence[Any]]]:
        """Rules are known of MindSpore's own classes: others may do anything."""
        bases = bases_of(optimizer)
        is_plain, scale = bases[0].startswith("mindspore."), loss_scale_of(optimizer)
        for place, (told, parameters) in enumerate(groups_of(optimizer)):
            rule = rule_of(bases, told) if is_plain else None
            group = Group(
                number=place, options=None if rule is None else rule.read(told, bases, number),
                mixes=mixes({name: value for name, value in told.items() if name != _POWERS}),
                eps=number(told.get("eps")) or 0.0, powers_in="float32", scale=scale,
            )  # fmt: skip
            yield group, parameters

    def is_dense(self, parameter: Any) -> bool:
        """As the optimizer is given it."""
        gradient: Any = self._gradients.get(id(parameter))
        if not isinstance(gradient, ms.Tensor):
            return False
        return gradient.dtype == parameter.dtype and gradient.shape == parameter.shape

    def held(self, optimizer: Any, parameter: Any) -> Mapping[str, Any]:
        """State has an element for each of the weight, but for the counter."""
        shape, state = tuple(parameter.shape), dict(self._states.get(id(parameter), []))
        kept = {name: t for name, t in state.items() if name == STEP or tuple(t.shape) == shape}
        return {VALUE: parameter, "grad": self._gradients[id(parameter)], **kept}
