"""Adam: Kingma & Ba 2015, algorithm 1. AdamW: Loshchilov & Hutter 2019, algorithm 2, which is `decoupled` here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hypocenter.optimizers.options import Options, option
from hypocenter.optimizers.rule import State, largest, optimizer

_DECOUPLED = ("FusedAdam", "DeepSpeedCPUAdam", "CPUAdam")  # apex, Transformer Engine, DeepSpeed: adam_w_mode=True
_POWER_OFF = 1e-5  # a power of a beta that float32 multiplied together; further off, it is one of another beta


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamOptions(Options):
    """Numbers of Adam.

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


@optimizer(
    "adam",
    classes=("Adam", "AdamW", *_DECOUPLED),
    options=AdamOptions,
    states={
        "exp_avg": ("moment1", "moments1", "adam_m", "lamb_m"),  # MindSpore: nn.Adam, AdamWeightDecay, Lamb
        "exp_avg_sq": ("moment2", "moments2", "adam_v", "lamb_v"),
        "max_exp_avg_sq": ("vhat",),
    },
)
class Adam:
    """A mean of gradients over the root of a mean of their squares."""

    @staticmethod
    def remember(gradient: Any, state: State, options: AdamOptions) -> dict[str, Any]:
        """Both moments; both start at 0."""
        beta1, beta2 = options.beta1, options.beta2
        square = beta2 * state.get("exp_avg_sq", 0.0) + (1 - beta2) * gradient**2
        new = {"exp_avg": beta1 * state.get("exp_avg", 0.0) + (1 - beta1) * gradient, "exp_avg_sq": square}
        if options.amsgrad:
            new["max_exp_avg_sq"] = largest(square, state.get("max_exp_avg_sq", 0.0))
        return new

    @staticmethod
    def direction(gradient: Any, state: State, options: AdamOptions) -> Any:
        """The mean over the root, each corrected for its start at 0."""
        one, two = corrections(options, state["step"])
        root = state["max_exp_avg_sq" if options.amsgrad else "exp_avg_sq"] ** 0.5
        if options.eps_before_correction:
            return state["exp_avg"] / (one * ((root + options.eps) / two**0.5))
        return state["exp_avg"] / (one * (root / two**0.5 + options.eps))

    @staticmethod
    def implied(classes: Sequence[str]) -> dict[str, Any]:
        """These decouple without a word."""
        return {"decoupled": any(name in _DECOUPLED or "adamw" in name.lower() for name in classes)}

    @staticmethod
    def recognises(classes: Sequence[str], told: Mapping[str, Any]) -> bool:
        """Others of the name, such as MindSpore's AdamWeightDecay."""
        return bool(classes) and "adam" in classes[0].lower() and "betas" in told


def corrections(options: AdamOptions, step: Any) -> tuple[Any, Any]:
    """What the moments are divided by at this step (counted from 1), as they start at 0."""
    if not options.bias_correction:
        return 1.0, 1.0
    one = _power(options.beta1, step, options.beta1_power)
    return 1 - one, 1 - _power(options.beta2, step, options.beta2_power)


def _power(beta: Any, step: Any, kept: float) -> Any:
    power = beta**step
    return kept if kept != math.inf and abs(kept - power) < _POWER_OFF else power
