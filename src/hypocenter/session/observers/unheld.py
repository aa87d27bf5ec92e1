"""Trained parameters that no optimizer can hold: they are in a plain list, or made anew in forward. For HC233.

What a model says that its parameters are does not look into lists, tuples and dicts, so no optimizer is given what lies
there; and what forward makes is newer than the optimizer. The graph of the loss leads to both, and nobody trains them.

Who the graph leads to is for each framework to say: session.torch_unheld, session.mindspore.unheld.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import Any

import numpy as np

from hypocenter import schedule
from hypocenter.detect.law_rows import HIDDEN, MADE_ANEW, NOT_STEPPED
from hypocenter.nouns import replace
from hypocenter.session.events import ContextT, Observer, Update
from hypocenter.session.observers.optimizer_rows import number_row
from hypocenter.tap.weakly import Ref

LAST = 64  # step
LOOKS = 4  # that a parameter must have been outside at: an optimizer may be made later
ELEMENTS, FEWEST = 64, 4  # of a parameter that are looked at, and that are needed to tell two apart


class Unheld(Observer[ContextT]):
    """Writes a row for each parameter that got a gradient at every look so far, is in no optimizer, and stays.

    Attributes:
        leaves: parameters that the graphs of the step under way lead to, by id, with their names.
        made: by a call of a module, after the first step.
    """

    until = LAST

    def __init__(self, context: ContextT) -> None:
        super().__init__(context)
        self.is_due = schedule.parse("doubling")
        self.leaves: dict[int, tuple[Ref[Any], str | None]] = {}
        self.made: dict[int, Ref[Any]] = {}
        self._values: dict[int, tuple[Ref[Any], Any]] = {}  # of a hidden one, at the first look
        self._excused: dict[int, Ref[Any]] = {}  # what they are or get is that of others
        self._looks: dict[int | str, list[int]] = {}  # steps at which it was outside

    # for a framework to say

    def has_gradient(self, update: Update, parameter: Any) -> bool:
        """Whether a leaf is a parameter, and has the gradient that the graph promised it."""
        raise NotImplementedError

    def hands_on(self, parameter: Any, other: Any) -> bool:
        """Whether the gradient of `parameter` is handed on to `other`, which an optimizer holds; both of one shape."""
        return False

    def in_containers(self, models: Sequence[Any], own: Set[int]) -> list[tuple[str, str, Any]]:
        """(name, container, parameter) of what lies in a list, tuple or dict of these models.

        Args:
            own: ids of the parameters that are about to be updated.
        """
        raise NotImplementedError

    # what is the same for all

    def before_update(self, update: Update) -> None:
        """Find parameters that got a gradient and that no optimizer holds."""
        leaves, self.leaves = self.leaves, {}
        framework = self.context.framework
        if not leaves or not update.check.is_finite or framework.optimizer(update.optimizer) is None:
            return
        own = update.ids
        named = {id(model): framework.named(model)[1].values() for model in self.context.names.roots()}
        models = [m for m in self.context.names.roots() if any(id(p) in own for p in named[id(m)])]
        registered = {id(p) for model in models for p in named[id(model)]}
        found = {  # a layer that no forward calls, but a `training_step`, has a name of its own
            id(p): (p, name)
            for ref, name in leaves.values()
            if (p := ref()) is not None and self.has_gradient(update, p)
            and (id(p) not in registered or self._is_in(self.made, p))
        }  # fmt: skip
        if found.keys() <= own or not own & leaves.keys():
            return
        held = {id(p): p for each in self.context.optimizers() for group in each.param_groups for p in group["params"]}
        if found.keys() <= held.keys() or framework.has_copies(list(held.values())):
            return
        others = framework.with_gradients(update, [p for p in held.values() if framework.is_tensor(p)])
        inside, outside = self.in_containers(models, own), found.keys() - held.keys()
        hidden = [each for each in inside if id(each[2]) in outside]
        made = {name: p for key, (p, name) in found.items() if name and key in outside and self._is_in(self.made, p)}
        for p in (*made.values(), *(p for _, _, p in hidden)):
            if any(self._is_of(p, other) for other in others):
                self._excused[id(p)] = Ref(p)
        excused = {container for _, container, p in inside if self._is_in(self._excused, p)}
        told = [
            (name, "", MADE_ANEW, since)
            for name, p in sorted(made.items(), key=lambda each: each[0])
            if not self._is_in(self._excused, p) and (since := self._since(name, update.step)) is not None
        ]
        told += [
            (name, where, HIDDEN, since)
            for name, where, p in hidden
            if where not in excused and self._stays(p) and (since := self._since(id(p), update.step)) is not None
        ]
        for name, where, kind, since in told:
            order, n_steps = self.context.clock.next_order(), update.step - since
            row = number_row(name, NOT_STEPPED, update.step, order, n_steps, module=kind, call=len(told))
            self.rows.append(replace(row, op=where))

    def _is_in(self, table: dict[int, Ref[Any]], parameter: Any) -> bool:
        ref = table.get(id(parameter))
        return ref is not None and ref() is parameter

    def _since(self, key: int | str, step: int) -> int | None:
        """Return the step at which it was first seen outside, once it was seen often enough; else None."""
        steps = self._looks.setdefault(key, [])
        steps.append(step)
        return steps[0] if len(steps) == LOOKS else None

    def _stays(self, parameter: Any) -> bool:
        """Return whether the parameter has kept its values: nobody moves it, by hand or in another way."""
        values = self.context.framework.sample(parameter, ELEMENTS)
        ref, before = self._values.get(id(parameter), (None, None))
        if values is None:
            return False
        if before is None or ref is None or ref() is not parameter:
            self._values[id(parameter)] = Ref(parameter), self.context.framework.copied(values)
            return True
        return before.shape == values.shape and bool((before == values).all())

    def _is_of(self, parameter: Any, other: Any) -> bool:
        """Return whether `parameter` is a copy of `other`, which an optimizer holds, or hands its gradient on to it."""
        if parameter.shape != other.shape:
            return False
        framework = self.context.framework
        samples = [framework.sample(each, ELEMENTS) for each in (parameter, other)]
        if any(each is None or len(each) < FEWEST for each in samples):
            return True  # that cannot be told
        mine, theirs = map(framework.on_host, samples)
        return (bool((mine != mine[0]).any()) and np.array_equal(mine, theirs)) or self.hands_on(parameter, other)


def contents(
    prefix: str, module: Any, parameters_of: Callable[[Any], Iterable[tuple[str, Any]]]
) -> Iterator[tuple[str, str, Any]]:
    """Yield (name, container, parameter) of what lies in a list, tuple or dict that a module holds.

    Who puts one thing alone into a list does that to hide it.

    Args:
        prefix: the module's name.
        parameters_of: of one thing there, with what comes after its name.
    """
    for key, value in list(vars(module).items()):
        if key.startswith("_") or not isinstance(value, (list, tuple, dict)) or len(value) < 2:
            continue
        name = f"{prefix}.{key}" if prefix else key
        for index, each in list(value.items()) if isinstance(value, dict) else enumerate(value):
            for inner, parameter in parameters_of(each):
                yield f"{name}[{index!r}]{inner}", name, parameter
