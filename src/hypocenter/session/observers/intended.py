"""What an optimizer meant to add to a weight, recomputed from its state after the step and its hyper-parameters.

Formulas: those of torch.optim.SGD, Adam and AdamW (their documentation), with the weight before the step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

FAMILIES: dict[type, str] = {torch.optim.SGD: "SGD", torch.optim.Adam: "Adam", torch.optim.AdamW: "AdamW"}
STATES: dict[str, tuple[str, ...]] = {
    "SGD": ("momentum_buffer",),
    "Adam": ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"),
    "AdamW": ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"),
}
"""Element-wise state that the formula of a family reads."""


def family_of(optimizer: object) -> str:
    """The family's name; "" for an optimizer whose formula is not known, subclasses included: they may do anything."""
    return FAMILIES.get(type(optimizer), "")


def intended(
    family: str, group: Mapping[str, Any], weight: Tensor, grad: Tensor, state: Mapping[str, Any]
) -> Tensor | None:
    """The update that the formula asks for; None when the state lacks what it needs.

    Args:
        family: of FAMILIES.
        group: hyper-parameters, the entry of `param_groups`.
        weight: before the step, in a wide format.
        grad: as the step used it, likewise.
        state: after the step; tensors of the same elements in the same format, and `step`.
    """
    try:
        return _FORMULAS[family](group, weight, -grad if group.get("maximize") else grad, state)
    except KeyError:
        return None


def _sgd(group: Mapping[str, Any], weight: Tensor, grad: Tensor, state: Mapping[str, Any]) -> Tensor:
    grad = grad + _number(group["weight_decay"], grad) * weight
    momentum = group["momentum"]
    if momentum:
        buffer = state["momentum_buffer"]
        grad = grad + momentum * buffer if group["nesterov"] else buffer
    return -_number(group["lr"], grad) * grad


def _adam(group: Mapping[str, Any], weight: Tensor, grad: Tensor, state: Mapping[str, Any], *, decays: bool) -> Tensor:
    rate, step = _number(group["lr"], grad), _number(state["step"], grad)
    beta1, beta2 = (_number(beta, grad) for beta in group["betas"])
    second = state["max_exp_avg_sq" if group.get("amsgrad") else "exp_avg_sq"]
    denominator = second.sqrt() / (1 - beta2**step) ** 0.5 + _number(group["eps"], grad)
    update = -(rate / (1 - beta1**step)) * state["exp_avg"] / denominator
    if group.get("decoupled_weight_decay", decays):
        update = update - rate * _number(group["weight_decay"], grad) * weight
    return update


def _number(value: Any, like: Tensor) -> Any:
    """A hyper-parameter as a number; one that is a tensor on a device stays there, so that nobody waits for it."""
    if not isinstance(value, Tensor):
        return value
    return float(value) if value.device.type == "cpu" else value.detach().to(like.dtype)


_FORMULAS: dict[str, Callable[[Mapping[str, Any], Tensor, Tensor, Mapping[str, Any]], Tensor]] = {
    "SGD": _sgd,
    "Adam": lambda group, weight, grad, state: _adam(group, weight, grad, state, decays=False),
    "AdamW": lambda group, weight, grad, state: _adam(group, weight, grad, state, decays=True),
}
