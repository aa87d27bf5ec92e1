"""Adam: Kingma & Ba 2015, algorithm 1. AdamW: Loshchilov & Hutter 2019, algorithm 2, which is `decoupled` here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hypocenter.optimizers.moments import AdamOptions, corrections, moments
from hypocenter.optimizers.rule import State, largest, optimizer

_DECOUPLED = ("FusedAdam", "DeepSpeedCPUAdam", "CPUAdam")  # apex, Transformer Engine, DeepSpeed: adam_w_mode=True


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
    """Adam: a mean of gradients over the root of a mean of their squares."""

    @staticmethod
    def remember(gradient: Any, state: State, options: AdamOptions) -> dict[str, Any]:
        """Return both moments, and with amsgrad the largest second moment so far."""
        new = moments(gradient, state, options)
        if options.amsgrad:
            new["max_exp_avg_sq"] = largest(new["exp_avg_sq"], state.get("max_exp_avg_sq", 0.0))
        return new

    @staticmethod
    def direction(gradient: Any, state: State, options: AdamOptions) -> Any:
        """Return the mean over the root, each corrected for its start at 0."""
        one, two = corrections(options, state["step"])
        root = state["max_exp_avg_sq" if options.amsgrad else "exp_avg_sq"] ** 0.5
        if options.eps_before_correction:
            return state["exp_avg"] / (one * ((root + options.eps) / two**0.5))
        return state["exp_avg"] / (one * (root / two**0.5 + options.eps))

    @staticmethod
    def implied(classes: Sequence[str]) -> dict[str, Any]:
        """Return that weight decay is decoupled for the classes that do so without telling it."""
        return {"decoupled": any(name in _DECOUPLED or "adamw" in name.lower() for name in classes)}

    @staticmethod
    def recognises(classes: Sequence[str], told: Mapping[str, Any]) -> bool:
        """Return whether this is another optimizer of that name, such as MindSpore's AdamWeightDecay."""
        return bool(classes) and "adam" in classes[0].lower() and "betas" in told
