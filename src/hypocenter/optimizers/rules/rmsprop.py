"""RMSprop: Tieleman & Hinton 2012, lecture 6.5; centred: Graves 2013, as torch.optim.RMSprop has it (2.6 to 2.13).

MindSpore's nn.RMSProp is another one: its eps stands below the root.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypocenter.optimizers.options import Options, option
from hypocenter.optimizers.rule import State, optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class RmspropOptions(Options):
    """Options of RMSprop. `centered`: the mean of gradients is taken out of the mean of their squares."""

    alpha: float = option(0.99, "alpha", must_be_told=True)
    eps: float = option(1e-8, "eps", must_be_told=True)
    momentum: float = option(0.0, "momentum")
    centered: bool = option(False, "centered")


@optimizer(
    "rmsprop",
    classes=("RMSprop",),
    options=RmspropOptions,
    states={"square_avg": ("mean_square", "ms"), "grad_avg": ("mean_grad", "mg"), "momentum_buffer": ()},
)
class Rmsprop:
    """RMSprop: the gradient over the root of a mean of squares, or a running sum of that."""

    @staticmethod
    def remember(gradient: Any, state: State, options: RmspropOptions) -> dict[str, Any]:
        """Return the mean of squares, with `centered` that of gradients, with momentum the sum; all start at 0."""
        alpha = options.alpha
        new = {"square_avg": alpha * state.get("square_avg", 0.0) + (1 - alpha) * gradient**2}
        if options.centered:
            new["grad_avg"] = alpha * state.get("grad_avg", 0.0) + (1 - alpha) * gradient
        if options.momentum:
            divided = _divided(gradient, new, options)
            new["momentum_buffer"] = options.momentum * state.get("momentum_buffer", 0.0) + divided
        return new

    @staticmethod
    def direction(gradient: Any, state: State, options: RmspropOptions) -> Any:
        """Return the running sum where there is momentum, else the gradient over the root."""
        return state["momentum_buffer"] if options.momentum else _divided(gradient, state, options)


def _divided(gradient: Any, state: State, options: RmspropOptions) -> Any:
    square = state["square_avg"] - state["grad_avg"] ** 2 if options.centered else state["square_avg"]
    return gradient / (square**0.5 + options.eps)
