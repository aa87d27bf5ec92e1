"""RAdam: Liu et al. 2020, algorithm 2, as torch.optim.RAdam has it (2.6 to 2.13)."""

from __future__ import annotations

from typing import Any

from hypocenter.optimizers.moments import AdamOptions, corrections, moments
from hypocenter.optimizers.rule import State, optimizer

_LEAST = 5  # length of the mean of squares from which on its variance is known


@optimizer("radam", classes=("RAdam",), options=AdamOptions, states={"exp_avg": (), "exp_avg_sq": ()})
class Radam:
    """RAdam: as Adam, rectified for the variance of the root; the mean alone while that is not known."""

    @staticmethod
    def remember(gradient: Any, state: State, options: AdamOptions) -> dict[str, Any]:
        """Return both moments, as in Adam."""
        return moments(gradient, state, options)

    @staticmethod
    def direction(gradient: Any, state: State, options: AdamOptions) -> Any:
        """Return the mean over the root, rectified; the mean alone while the variance is not known."""
        one, two = corrections(options, state["step"])
        most = 2 / (1 - options.beta2) - 1
        mean = state["exp_avg"] / one
        if most <= _LEAST:
            return mean
        length = most - 2 * state["step"] * options.beta2 ** state["step"] / two
        is_known = length > _LEAST
        squared = (length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length)
        rectified = (squared * is_known) ** 0.5 * two**0.5
        return mean * (rectified / (state["exp_avg_sq"] ** 0.5 + options.eps) + (1 - is_known))
