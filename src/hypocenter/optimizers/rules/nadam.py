"""NAdam: Dozat 2016, algorithm 2 with a schedule of the momentum, as torch.optim.NAdam has it (2.6 to 2.13)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hypocenter.optimizers.moments import AdamOptions, corrections, moments
from hypocenter.optimizers.options import option
from hypocenter.optimizers.rule import State, optimizer

_NOTHING = 1e-30  # a product of momenta that is as good as 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NadamOptions(AdamOptions):
    """Options of NAdam. `momentum_decay`: how fast the momentum comes to beta1."""

    momentum_decay: float = option(4e-3, "momentum decay", must_be_told=True)


@optimizer(
    "nadam", classes=("NAdam",), options=NadamOptions, states={"exp_avg": (), "exp_avg_sq": (), "mu_product": ()}
)
class Nadam:
    """NAdam: as Adam, with the mean one step ahead."""

    @staticmethod
    def remember(gradient: Any, state: State, options: NadamOptions) -> dict[str, Any]:
        """Return the moments as in Adam, and the product of all momenta."""
        return {**moments(gradient, state, options), "mu_product": _product(options, state.get("step", 0) + 1)}

    @staticmethod
    def direction(gradient: Any, state: State, options: NadamOptions) -> Any:
        """Return gradient and mean, each with a momentum and a correction of its own, over the root."""
        step = state["step"]
        now, then = _momentum(options, step), _momentum(options, step + 1)
        product = _product(options, step)
        root = (state["exp_avg_sq"] / corrections(options, step)[1]) ** 0.5 + options.eps
        one, other = (1 - now) / (1 - product), then / (1 - product * then)
        return (gradient * one + state["exp_avg"] * other) / root


def _momentum(options: NadamOptions, step: Any) -> Any:
    """Return the momentum at this step, counted from 1."""
    return options.beta1 * (1 - 0.5 * 0.96 ** (step * options.momentum_decay))


def _product(options: NadamOptions, step: Any) -> Any:
    """Return the product of the momenta up to this step; for an array, of each step in it."""
    if isinstance(step, np.ndarray):
        known = {each: _product(options, each) for each in set(step.tolist())}
        return np.array([known[each] for each in step.tolist()])
    product = 1.0
    for number in range(1, round(step) + 1):
        product *= _momentum(options, number)
        if product < _NOTHING:
            return 0.0
    return product
