"""Units of a layer that are the same and get the same gradient: they will be the same for ever. For HC254."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hypocenter.session.alike import AT, alike_row, are_alike
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.tap.gradients import local


class AlikeUnits(Observer):
    """Writes a row for the first weight all of whose rows are equal and have equal gradients, neither of them 0."""

    until = AT[-1]

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._told: list[str] = []

    def before_update(self, update: Update) -> None:
        """Compare the rows of weights at two early steps, and those of their gradients."""
        if update.step not in AT or update.scaled is not None:
            return
        pairs = [(p, g) for p, g in update.gradients if p.dim() > 1 and len(p) > 1]
        on_host = [(p, g) for p, g in pairs if p.device.type == "cpu"]
        found = [self.context.label(p) for p, g in on_host if _are_alike(p, g)]
        if len(on_host) < len(pairs) and not found:
            self._ask([(p, g) for p, g in pairs if p.device.type != "cpu"])
        self._tell(found, update.step)

    def _ask(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Ask of weights on devices: the answer comes with the next check of gradients."""
        by_device: dict[torch.device, list[tuple[str, Tensor]]] = {}
        for p, g in pairs:
            answer = _alike(p, g)
            if answer is not None:
                by_device.setdefault(p.device, []).append((self.context.label(p), answer))
        for answers in by_device.values():
            names = [name for name, _ in answers]
            step = self.context.clock.step

            def read(numbers: Sequence[float], names: list[str] = names, step: int = step) -> None:
                self._tell([name for name, is_alike in zip(names, numbers, strict=True) if is_alike], step)

            self.context.ride(torch.stack([answer for _, answer in answers]).float(), read)

    def _tell(self, found: list[str], step: int) -> None:
        new = [name for name in found if name not in self._told]
        self._told += new
        if new:
            self.rows.append(alike_row(new, step, self.context.clock.next_order()))


def _are_alike(parameter: Tensor, gradient: Tensor) -> bool:
    weight = local(parameter)
    if weight is None or len(weight) < 2 or not torch.equal(weight[0], weight[-1]):
        return False  # the usual case, in two rows
    answer = _alike(parameter, gradient)
    return answer is not None and bool(answer)


def _alike(parameter: Tensor, gradient: Tensor) -> Tensor | None:
    """Return a bool on the parameter's device, whether rows are alike; None if not all of them are on this rank."""
    weight, slope = local(parameter), local(gradient)
    if weight is None or slope is None or weight.shape != parameter.shape or slope.shape != weight.shape:
        return None
    if not slope.is_floating_point() or slope.layout != torch.strided:
        return None
    return are_alike(weight.detach(), slope.detach(), torch.finfo(slope.dtype).eps)
