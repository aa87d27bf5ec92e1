"""SGD with momentum: Sutskever et al. 2013, equations 1 and 2, as torch.optim.SGD has it (2.6 to 2.13)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypocenter.optimizers.options import Options, option
from hypocenter.optimizers.rule import State, optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class SgdOptions(Options):
    """Options of SGD. `dampening` is not applied to the first gradient."""

    momentum: float = option(0.0, "momentum")
    dampening: float = option(0.0, "dampening")
    nesterov: bool = option(False, "nesterov")


@optimizer(
    "sgd",
    classes=("SGD", "FusedSGD", "Momentum"),
    options=SgdOptions,
    states={"momentum_buffer": ("moments", "momentum_buf", "moment", "accum")},  # MindSpore
)
class Sgd:
    """SGD: the gradient, or a running sum of gradients."""

    @staticmethod
    def remember(gradient: Any, state: State, options: SgdOptions) -> dict[str, Any]:
        """Return the running sum, which starts with the first gradient; nothing without momentum."""
        if not options.momentum:
            return {}
        buffer = state.get("momentum_buffer")
        new = gradient if buffer is None else options.momentum * buffer + (1 - options.dampening) * gradient
        return {"momentum_buffer": new}

    @staticmethod
    def direction(gradient: Any, state: State, options: SgdOptions) -> Any:
        """Return the running sum, with Nesterov one step ahead; without momentum the gradient."""
        if not options.momentum:
            return gradient
        buffer = state["momentum_buffer"]
        return gradient + options.momentum * buffer if options.nesterov else buffer
