"""torch, as observers that serve every framework need it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from hypocenter.session.events import Update
from hypocenter.session.framework import SAMPLE, Undo
from hypocenter.session.observers import grid
from hypocenter.session.observers.sampled import Deferred, sample
from hypocenter.tap import schedule_calls

_FAMILIES: dict[type, str] = {torch.optim.SGD: "SGD", torch.optim.Adam: "Adam", torch.optim.AdamW: "AdamW"}


class TorchFramework:
    """See hypocenter.session.framework. Arrays are tensors on their device."""

    xp: Any = torch

    def schedules(self, tell: Callable[[Any, Any], None], fail: Callable[[str], None]) -> Undo:
        """Schedulers and `swa_utils`."""
        return schedule_calls.attach(tell, fail)

    def optimizer(self, optimizer: Any) -> torch.optim.Optimizer | None:
        """The torch optimizer in it (accelerate wraps one); None for a framework's own, whose weights are copies."""
        inner = getattr(optimizer, "optimizer", None)
        if isinstance(inner, torch.optim.Optimizer) and optimizer is not inner:
            return self.optimizer(inner)
        return optimizer if isinstance(optimizer, torch.optim.Optimizer) else None

    def state_of(self, optimizer: torch.optim.Optimizer, parameter: Tensor) -> Mapping[str, Any]:
        """Asking with [] would make an entry in the user's optimizer."""
        return cast("Mapping[str, Any]", optimizer.state.get(parameter) or {})

    def family_of(self, optimizer: object) -> str:
        """Not of subclasses: they may do anything."""
        return _FAMILIES.get(type(optimizer), "")

    def has_gradient(self, update: Update, parameter: Tensor) -> bool:
        """As it is now."""
        return parameter.grad is not None

    def gradient(self, update: Update, parameter: Tensor) -> Tensor | None:
        """As it is now."""
        return sample(parameter.grad) if parameter.grad is not None else None

    def sample(self, tensor: Tensor, size: int = SAMPLE) -> Tensor | None:
        """A view where possible."""
        return sample(tensor, size)

    def copied(self, array: Tensor) -> Tensor:
        """A clone."""
        return array.clone()

    def wide(self, array: Tensor) -> Tensor:
        """On its device."""
        return array.to(grid.wide_dtype(array.device))

    def ulp(self, values: Tensor, dtype: torch.dtype) -> Tensor:
        """On their device."""
        return grid.ulp(values, dtype)

    def rounded(self, value: float, dtype: torch.dtype) -> float:
        """As torch casts."""
        return grid.rounded(value, dtype)

    def is_tensor(self, value: object) -> bool:
        """Of torch."""
        return isinstance(value, Tensor)

    def is_low(self, value: object) -> bool:
        """float16, bfloat16 or float8."""
        return grid.is_low(value)

    def name_of(self, dtype: torch.dtype) -> str:
        """Without "torch."."""
        return grid.name_of(dtype)

    def deferred(self) -> Deferred:
        """Read from devices together."""
        return Deferred()
