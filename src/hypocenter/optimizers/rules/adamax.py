"""Adamax: Kingma & Ba 2015, algorithm 2, as torch.optim.Adamax has it (2.6 to 2.13)."""

from __future__ import annotations

from typing import Any

from hypocenter.optimizers.moments import AdamOptions, corrections
from hypocenter.optimizers.rule import State, largest, optimizer


@optimizer("adamax", classes=("Adamax",), options=AdamOptions, states={"exp_avg": (), "exp_inf": ()})
class Adamax:
    """Adamax: a mean of gradients over the largest gradient, which decays."""

    @staticmethod
    def remember(gradient: Any, state: State, options: AdamOptions) -> dict[str, Any]:
        """Return the mean and the largest gradient; both start at 0, and eps is added to the new gradient."""
        mean = options.beta1 * state.get("exp_avg", 0.0) + (1 - options.beta1) * gradient
        return {
            "exp_avg": mean,
            "exp_inf": largest(abs(gradient) + options.eps, options.beta2 * state.get("exp_inf", 0.0)),
        }

    @staticmethod
    def direction(gradient: Any, state: State, options: AdamOptions) -> Any:
        """Return the mean over the largest gradient; only the mean is corrected for its start at 0."""
        return state["exp_avg"] / (corrections(options, state["step"])[0] * state["exp_inf"])
