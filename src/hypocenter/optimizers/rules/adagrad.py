"""Adagrad: Duchi et al. 2011, as torch.optim.Adagrad has it (2.6 to 2.13)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypocenter.optimizers.options import Options, option
from hypocenter.optimizers.rule import State, optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class AdagradOptions(Options):
    """Options of Adagrad. `lr_decay`: the rate falls by 1 / (1 + steps * lr_decay)."""

    eps: float = option(1e-10, "eps")
    lr_decay: float = option(0.0, "decay of the learning rate")


@optimizer("adagrad", classes=("Adagrad", "DeepSpeedCPUAdagrad"), options=AdagradOptions, states={"sum": ("accum",)})
class Adagrad:
    """Adagrad: the gradient over the root of the sum of all squares."""

    @staticmethod
    def remember(gradient: Any, state: State, options: AdagradOptions) -> dict[str, Any]:
        """Return the sum of the squares of all gradients."""
        return {"sum": state.get("sum", 0.0) + gradient**2}

    @staticmethod
    def direction(gradient: Any, state: State, options: AdagradOptions) -> Any:
        """Return the gradient over the root of the sum; steps count from 0 in the decay of the rate."""
        return gradient / ((state["sum"] ** 0.5 + options.eps) * (1 + (state["step"] - 1) * options.lr_decay))
