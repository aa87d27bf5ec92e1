"""The options of an optimizer in one vocabulary, read off its class and the group's own options."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hypocenter.compare.updates.recorded import ParameterUpdate

Family = Literal["adam", "sgd", "adagrad"]
NO_DECAY = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """One rule with its numbers. What a family has not stays at its default.

    Attributes:
        decoupled: weight decay shrinks the parameter (AdamW) and is not added to the gradient (L2).
        amsgrad: the largest second moment so far divides.
        eps_before_correction: eps is added to the root before that is corrected for the bias (MindSpore's Adam).
        powers: beta1 and beta2 to the power of the step, as the optimizer keeps them; None: they are computed.
        adagrad's `lr_decay`: the rate falls by 1 / (1 + steps * lr_decay).
    """

    family: Family
    lr: float
    weight_decay: float = NO_DECAY
    decoupled: bool = False
    beta1: float = 0.0
    beta2: float = 0.0
    eps: float = 0.0
    bias_correction: bool = True
    amsgrad: bool = False
    eps_before_correction: bool = False
    powers: tuple[float, float] | None = None
    maximize: bool = False
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    lr_decay: float = 0.0


WORDS = {
    "lr": "learning rate", "weight_decay": "weight decay", "decoupled": "decoupled weight decay (AdamW)",
    "beta1": "beta1", "beta2": "beta2", "eps": "eps", "bias_correction": "bias correction", "amsgrad": "amsgrad",
    "maximize": "maximize", "momentum": "momentum", "dampening": "dampening", "nesterov": "nesterov",
    "lr_decay": "decay of the learning rate", "family": "kind of optimizer",
}  # fmt: skip
"""What a person calls each of them."""

_ADAM_CLASSES = ("Adam", "AdamW", "FusedAdam", "DeepSpeedCPUAdam", "CPUAdam")
_ADAGRAD_CLASSES = ("Adagrad", "DeepSpeedCPUAdagrad")
_ADAMW_BY_DEFAULT = (
    "FusedAdam",
    "DeepSpeedCPUAdam",
    "CPUAdam",
)  # apex, Transformer Engine, DeepSpeed: adam_w_mode=True
_OTHER_RULES = ("NAdam", "RAdam", "Adamax", "SparseAdam", "Adafactor", "LAMB", "FusedLamb", "OnebitAdam", "Lion")


def options_of(update: ParameterUpdate) -> Options | None:
    """What an optimizer says that it does; None for one whose rule is not known here, or without numbers."""
    classes = [base.rpartition(".")[2] for base in update.bases] or [update.kind]
    family = _family(classes, update.options)
    lr = _number(update.options.get("lr"))
    if family is None or lr is None:
        return None
    known = update.options
    common: dict[str, Any] = {
        "family": family, "lr": lr, "weight_decay": _number(known.get("weight_decay")) or 0.0,
        "maximize": bool(known.get("maximize", False)),
    }  # fmt: skip
    if family == "adam":
        betas = known.get("betas")
        pair = list(betas) if isinstance(betas, (list, tuple)) else [known.get("beta1"), known.get("beta2")]
        one, two = (_number(value) for value in [*pair, None, None][:2])
        eps = _number(known.get("eps"))
        if one is None or two is None or eps is None:
            return None
        return Options(
            **common, beta1=one, beta2=two, eps=eps, decoupled=_is_decoupled(classes, known),
            bias_correction=bool(known.get("bias_correction", known.get("correct_bias", True))),
            amsgrad=bool(known.get("amsgrad", False)),
            eps_before_correction=bool(known.get("eps_before_correction", False)), powers=_powers(known),
        )  # fmt: skip
    if family == "sgd":
        return Options(
            **common, momentum=_number(known.get("momentum")) or 0.0, dampening=_number(known.get("dampening")) or 0.0,
            nesterov=bool(known.get("nesterov", False)),
        )  # fmt: skip
    eps, lr_decay = _number(known.get("eps")), _number(known.get("lr_decay")) or 0.0
    return Options(**common, eps=1e-10 if eps is None else eps, lr_decay=lr_decay)  # 1e-10: torch.optim.Adagrad


def _family(classes: list[str], options: Mapping[str, Any]) -> Family | None:
    if any(name in _OTHER_RULES for name in classes):
        return None
    if any(name in _ADAM_CLASSES for name in classes):
        return "adam"
    if any(name in _ADAGRAD_CLASSES for name in classes):
        return "adagrad"
    if any(name in ("SGD", "FusedSGD", "Momentum") for name in classes):
        return "sgd"
    return "adam" if classes and "adam" in classes[0].lower() and "betas" in options else None


def _is_decoupled(classes: list[str], options: Mapping[str, Any]) -> bool:
    for key in ("decoupled_weight_decay", "adam_w_mode", "adamw_mode"):
        if isinstance(options.get(key), bool):
            return bool(options[key])
    return any(name in _ADAMW_BY_DEFAULT or "adamw" in name.lower() for name in classes)


def _powers(options: Mapping[str, Any]) -> tuple[float, float] | None:
    told: Any = options.get("beta_powers")
    pair = [_number(value) for value in told] if isinstance(told, (list, tuple)) else []
    return (pair[0], pair[1]) if len(pair) == 2 and pair[0] is not None and pair[1] is not None else None


def _number(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None
