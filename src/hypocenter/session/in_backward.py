"""Optimizers that step inside a backward, each as soon as its parameter's gradient is there: one update in all.

Programs do so to save memory (torchtune's `optimizer_in_bwd`): a hook on the accumulated gradient steps and lets the
gradient go. By the end of the backward neither the gradients nor the parameters that it started from are left. What is
kept of a gradient is its norm.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from hypocenter.session.by_hand import ByHand
from hypocenter.summary.reducers.torch_float64 import has_float64
from hypocenter.tap.grad_scaler import gradients_of
from hypocenter.tap.gradients import local


class Steps(Protocol):
    """What is told where a step begins and ends (the boundary)."""

    def evaluated(self, gradients: Any) -> None: ...
    def before(self, optimizer: Any, scaled: None, gradients: Any, *, has_gradients: bool) -> None: ...
    def act(self, optimizer: Any) -> None: ...
    def after(self, optimizer: Any) -> None: ...


class UpdatesInBackward:
    """Gathers the optimizer steps within one backward into one update."""

    def __init__(self, boundary: Steps, *, may_stop: bool) -> None:
        self._boundary, self._may_stop = boundary, may_stop
        self._all = ByHand()  # stands for all the optimizers
        self._groups: dict[int, dict[str, Any]] = {}
        self._norms: list[tuple[torch.Tensor, torch.Tensor]] = []

    def note(self, optimizer: torch.optim.Optimizer) -> None:
        """Note that an optimizer is about to step within a backward.

        The first in a backward waits for the loss and its own gradient: no parameter has moved yet, so that a step that
        failed can be done again.
        """
        if not self._groups:
            self._boundary.evaluated(gradients_of(optimizer))
        self._groups.update({id(group): group for group in optimizer.param_groups})
        for parameter, grad in gradients_of(optimizer):
            values = local(grad)
            if values is not None and values.layout == torch.strided:
                wide = torch.float64 if has_float64(values.device.type) else torch.float32  # float32 may overflow
                with torch.no_grad():
                    self._norms.append((parameter, torch.linalg.vector_norm(values, dtype=wide)))

    @property
    def has_stepped(self) -> bool:
        """Whether any optimizer has stepped in the backward that is under way, or just over."""
        return bool(self._groups)

    def after_backward(self) -> None:
        """Make one update of all the optimizer steps within this backward, if there were any."""
        if not self._groups:
            return
        self._all.param_groups, self._groups = list(self._groups.values()), {}
        norms, self._norms = self._norms, []
        self._boundary.before(self._all, None, norms, has_gradients=False)
        if self._may_stop:
            self._boundary.act(self._all)
        self._boundary.after(self._all)
