"""A stand-in for `torch_npu.npu.amp.GradScaler`, written from its public methods and fields; none of its code.

As there: it derives from torch's scaler and has `scale`, `unscale_`, `step`, `update` of its own, none of which calls
the inherited one; whether a step overflowed is a flag of the object (`_has_overflow`), which a device that saturates
takes from its status register instead of from the gradients; `dynamic=False` makes the scale fixed and every update.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch.amp.grad_scaler import OptState, _refresh_per_optimizer_state


class GradScaler(torch.amp.GradScaler):
    """What `torch.npu.amp.GradScaler` is to a program. `device` is here so that it can be tried on the CPU."""

    def __init__(self, init_scale: float = 2.0**16, dynamic: bool = True, device: str = "npu", **fields: Any) -> None:
        self._device, self._enabled = device, True
        self._init_scale, self._init_growth_tracker = init_scale, 0
        self._scale: Any = None
        self._growth_tracker: Any = None
        self._growth_factor, self._backoff_factor = 2.0, 0.5
        self._growth_interval = fields.get("growth_interval", 2000)
        self._dynamic = dynamic
        self._per_optimizer_states = defaultdict(_refresh_per_optimizer_state)
        self._has_overflow = False
        self.status_register = False  # of a device that saturates: an operator has overflowed since it was cleared

    def scale(self, outputs: Any) -> Any:
        if self._scale is None:
            self._scale = torch.full((), self._init_scale, device=self._device)
            self._growth_tracker = torch.full((), 0, dtype=torch.int32, device=self._device)
        return outputs * self._scale

    def unscale_(self, optimizer: Any) -> None:
        state = self._per_optimizer_states[id(optimizer)]
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.div_(self._scale)
                    self._has_overflow |= self._dynamic and not bool(torch.isfinite(p.grad).all())
        self._has_overflow |= self.status_register
        found = torch.full((), float(self._has_overflow), device=self._device)
        state["found_inf_per_device"] = {found.device: found}
        state["stage"] = OptState.UNSCALED

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        state = self._per_optimizer_states[id(optimizer)]
        if state["stage"] is OptState.READY:
            self.unscale_(optimizer)
        result = None if self._has_overflow else optimizer.step(*args, **kwargs)
        state["stage"] = OptState.STEPPED
        return result

    def update(self, new_scale: Any = None) -> None:
        if self._dynamic:
            self._scale.mul_(self._backoff_factor if self._has_overflow else 1.0)
            self._growth_tracker = (
                torch.zeros_like(self._growth_tracker) if self._has_overflow else self._growth_tracker + 1
            )
        self._per_optimizer_states = defaultdict(_refresh_per_optimizer_state)
        self._has_overflow = self.status_register = False
