"""Optimizers that step one after another on the gradients of the same backward.

When the second one steps, the parameters of the first have moved, and nothing can be replayed any more. So what the
second one is going to use is checked together with the gradients of the first, before anything has moved. Who steps
after whom is known from the last time; the first time, everybody counts who has not stepped yet.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence

import torch

from hypocenter.session.check import Check
from hypocenter.tap.grad_scaler import gradients_of
from hypocenter.tap.names import NameMap
from hypocenter.tap.weakly import Ref

Gradients = list[tuple[torch.Tensor, torch.Tensor]]
Group = weakref.WeakValueDictionary[int, torch.optim.Optimizer]  # by id: not every optimizer has a hash


class SharedBackward:
    """Which optimizers used the last backward together, and what is known of the gradients of those yet to step.

    Args:
        made: every optimizer of the program.
        names: of the models that are trained. What may step the first time is one that holds parameters of these.
    """

    def __init__(self, made: Callable[[], Iterable[torch.optim.Optimizer]], names: NameMap) -> None:
        self._made, self._names = made, names
        self._group: Group | None = None  # of the last backward that an optimizer used
        self._group_of: dict[int, Group] = {}  # the last one of each
        self._alone: Ref[torch.optim.Optimizer] | None = None  # the only one of that group
        self._known: set[str] = set()  # parameters whose bad gradients have been looked into

    def begin_update(self, optimizer: torch.optim.Optimizer, *, is_first: bool) -> Gradients:
        """Return (parameter, gradient) of the optimizers that are expected to step after this one.

        Args:
            is_first: there was a backward since the last update.
        """
        if not is_first:
            if self._group is not None:
                self._join(optimizer, self._group)
            return []
        if self._known:
            self._known = set()
        if self._alone is not None and self._alone() is optimizer:
            return []  # it was alone the last time, and nobody has joined it since
        others = self._expected_after(optimizer)
        self._group = weakref.WeakValueDictionary()
        self._join(optimizer, self._group)
        if not others:
            return []
        own = {id(p) for group in optimizer.param_groups for p in group["params"]}
        return [(p, grad) for other in others for p, grad in gradients_of(other) if id(p) not in own]

    def _expected_after(self, optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
        together = self._group_with(optimizer)
        if together is not None:
            return [each for each in together.values() if each is not optimizer]
        new = (each for each in self._made() if each is not optimizer and self._group_with(each) is None)
        return [each for each in new if self._is_of_a_model(each)]

    def _group_with(self, optimizer: torch.optim.Optimizer) -> Group | None:
        group = self._group_of.get(id(optimizer))
        return group if group is not None and group.get(id(optimizer)) is optimizer else None  # another had that id

    def _join(self, optimizer: torch.optim.Optimizer, group: Group) -> None:
        group[id(optimizer)] = optimizer
        self._alone = Ref(optimizer) if len(group) == 1 else None
        self._group_of[id(optimizer)] = group
        self._group_of = {key: each for key, each in self._group_of.items() if key in each}  # the rest are gone

    def _is_of_a_model(self, optimizer: torch.optim.Optimizer) -> bool:
        held = (p for group in optimizer.param_groups for p in group["params"])
        return any(self._names.param_name(p) is not None for p in held)

    def looked_into(self, ahead: Check) -> None:
        """Note that bad gradients have been investigated before the optimizer that holds them steps."""
        self._known = set(ahead.bad_params)

    def knows(self, bad_params: Sequence[str]) -> bool:
        """Return whether the gradients of all these have been investigated already."""
        return bool(bad_params) and self._known.issuperset(bad_params)
