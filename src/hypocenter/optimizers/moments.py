"""Two running means, of gradients and of their squares, as the kinds of Adam have them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from hypocenter.optimizers.options import Options, option
from hypocenter.optimizers.rule import State

_POWER_OFF = 1e-5  # a power of a beta that float32 multiplied together; further off, it is one of another beta


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamOptions(Options):
    """The options of Adam.

    Attributes:
        amsgrad: the largest second moment so far divides.
        eps_before_correction: eps is added to the root before that is corrected for the bias (MindSpore's Adam).
        beta1_power, beta2_power: the betas to the power of the step, as the optimizer keeps them; inf: it does not.
    """

    beta1: float = option(0.9, "beta1", words=("betas[0]",), must_be_told=True)
    beta2: float = option(0.999, "beta2", words=("betas[1]",), must_be_told=True)
    eps: float = option(1e-8, "eps", must_be_told=True)
    bias_correction: bool = option(True, "bias correction", words=("correct_bias",))
    amsgrad: bool = option(False, "amsgrad")
    eps_before_correction: bool = option(False, "eps before the bias correction")
    beta1_power: float = option(math.inf, words=("beta_powers[0]",))
    beta2_power: float = option(math.inf, words=("beta_powers[1]",))


def moments(gradient: Any, state: State, options: AdamOptions) -> dict[str, Any]:
    """Return both moments after this gradient; both start at 0."""
    mean = options.beta1 * state.get("exp_avg", 0.0) + (1 - options.beta1) * gradient
    square = options.beta2 * state.get("exp_avg_sq", 0.0) + (1 - options.beta2) * gradient**2
    return {"exp_avg": mean, "exp_avg_sq": square}


def corrections(options: AdamOptions, step: Any) -> tuple[Any, Any]:
    """Return what the two moments are divided by at this step (counted from 1) because they start at 0."""
    if not options.bias_correction:
        return 1.0, 1.0
    one = _power(options.beta1, step, options.beta1_power)
    return 1 - one, 1 - _power(options.beta2, step, options.beta2_power)


def _power(beta: Any, step: Any, kept: float) -> Any:
    power = beta**step
    return np.where(np.abs(kept - power) < _POWER_OFF, kept, power) if kept != math.inf else power
