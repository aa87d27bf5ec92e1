"""Gradients accumulated in a low format over many micro-batches: does adding the next one still change anything?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from hypocenter.session.framework import Framework
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.session.observers.accumulated_rows import addition_rows
from hypocenter.session.observers.additions import Additions
from hypocenter.session.observers.grid import is_low, name_of
from hypocenter.session.observers.sampled import Deferred, sample

MANY = 8  # micro-batches in a step from which on it is looked at
ELEMENTS = 2048  # of the parameter whose turn it is


class _Sums:
    """What one gradient accumulator adds up, done again for a sample: in its own format and in a wide one.

    A hook on the accumulator, not on the parameter: compiled models guard on the hooks of their parameters.
    """

    def __init__(self, parameter: Tensor, framework: Framework) -> None:
        self.parameter = parameter
        self._node = torch.autograd.graph.get_gradient_edge(parameter).node  # lives as long as somebody holds it
        self._handle: Any = self._node.register_prehook(self._before_addition)
        self.sums = Additions(framework)
        self.is_broken = False

    def remove(self) -> None:
        """Take the hook off."""
        self._handle.remove()

    def _before_addition(self, gradients: Any) -> None:
        if self.is_broken:
            return
        try:
            with torch.no_grad(), _disable_current_modes():
                self._add(sample(gradients[0], ELEMENTS))
        except Exception:  # an unusual gradient must not break the user's backward
            self.is_broken = True

    def _add(self, gradient: Tensor | None) -> None:
        held = self.parameter.grad
        present = sample(held, ELEMENTS) if held is not None else None
        if gradient is None or gradient.dtype != self.parameter.dtype or (present is None and self.sums.n_added):
            self.is_broken = True  # somebody takes the gradient away after each micro-batch: float32 main gradients
            return
        self.sums.add(gradient, present)


class Accumulation(Observer):
    """Follows one parameter a step, in turn, once a program accumulates over many micro-batches in a low format."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._sums: _Sums | None = None
        self._turn = 0
        self._deferred = Deferred(context.ride)

    def attach(self) -> Callable[[], None]:
        """Return the undo, which takes off a hook that is on."""
        return self._let_go

    def _let_go(self) -> None:
        if self._sums is not None:
            self._sums.remove()
        self._sums = None

    def at_rest(self) -> Iterable[str]:
        """With few micro-batches there is nothing to follow."""
        return ("before_update", "after_update") if self._sums is None and not self._deferred.waiting else ()

    def before_update(self, update: Update) -> None:
        """Read the sums of the parameter that was followed: those of this step are complete."""
        if self._deferred.waiting:
            self._deferred.read()
        sums = self._sums
        if sums is None or sums.is_broken or sums.sums.n_added < MANY:
            return
        numbers = sums.sums.numbers()
        if numbers is None:
            return
        name, dtype = self.context.label(sums.parameter), name_of(sums.parameter.dtype)
        n_added, step, shape = sums.sums.n_added, update.step, tuple(sums.parameter.shape)

        def read(host: Sequence[float]) -> None:
            order = self.context.clock.next_order
            self.rows += addition_rows(name, dtype, shape, host, n_added=n_added, step=step, order=order)

        self._deferred.add(numbers, read)

    def after_update(self, update: Update) -> None:
        """Follow the next parameter, if this step had many micro-batches."""
        if self._sums is not None:
            self._let_go()
        if len(update.microbatches) < MANY:
            return
        low = [p for p in update.parameters if is_low(p) and p.requires_grad and p.is_leaf and not _is_sharded(p)]
        if low:
            self._turn += 1
            self._sums = _Sums(low[self._turn % len(low)], self.context.framework)


def _is_sharded(parameter: Tensor) -> bool:
    return hasattr(parameter, "to_local") or parameter.layout != torch.strided
