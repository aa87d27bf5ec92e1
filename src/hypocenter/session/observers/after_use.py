"""Whether gradients are changed after the optimizer has used them, and then thrown away. For HC257."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hypocenter.capturing import reuses_memory
from hypocenter.detect.law_rows import CHANGED_AFTER
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.session.observers.optimizer_rows import number_row
from hypocenter.tap.gradients import local

LAST = 16  # step; what a program does after its update it does from the first one on
IN_A_ROW = 4  # updates
MOST_ELEMENTS = 1 << 16


@dataclass(slots=True)
class _Used:
    """A gradient that an update has used.

    Attributes:
        parameter: whose it is.
        gradient: itself.
        value: as the update found it.
    """

    parameter: Tensor
    gradient: Tensor
    value: Tensor


class AfterUse(Observer):
    """Writes a row when gradients are changed after each of several updates, and then used by none."""

    until = LAST + IN_A_ROW

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._used: _Used | None = None
        self._n_changed = 0

    def after_update(self, update: Update) -> None:
        """Keep the smallest gradient until the next backward, with its value as the update found it."""
        self._used = None
        if update.step > LAST or update.skipped or update.scaled is not None:
            return
        used = [(p, p.grad) for p, _ in update.gradients if p.grad is not None and local(p.grad) is p.grad]
        plain = [(p, g) for p, g in used if g.layout == torch.strided and g.numel() <= MOST_ELEMENTS]
        if plain:
            parameter, gradient = min(plain, key=lambda pair: pair[1].numel())
            self._used = _Used(parameter, gradient, gradient.detach().clone())

    def before_clip(self, parameters: Sequence[Tensor], max_norm: float) -> None:
        """Forget the gradient: a clip after the update is told of by itself (HC238)."""
        self._used = None

    def before_backward(self, roots: Sequence[Tensor]) -> None:
        """Find out if the gradient was changed after the update: by now the program has dropped it, or adds to it."""
        used, self._used = self._used, None
        if used is None or used.parameter.grad is used.gradient or reuses_memory():
            return
        is_other = (used.gradient != used.value) & used.value.isfinite()  # a NaN is never what it was
        answer = is_other.any() & used.gradient.any()
        if answer.device.type == "cpu":
            self._add(self.context.label(used.parameter), bool(answer))
            return
        name = self.context.label(used.parameter)
        self.context.ride(answer.float().reshape(1), lambda numbers: self._add(name, numbers[0] > 0))

    def _add(self, name: str, is_changed: bool) -> None:
        self._n_changed = self._n_changed + 1 if is_changed else 0
        if self._n_changed == IN_A_ROW:
            clock = self.context.clock
            self.rows.append(number_row(name, CHANGED_AFTER, clock.step, clock.next_order(), float(IN_A_ROW)))
