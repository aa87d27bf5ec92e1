"""What an update would make of parameters with other gradients: on copies of all that it reads and writes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

Pairs = Iterator[tuple[Tensor, Tensor]]


def updated(optimizer: Any, gradients: Callable[[], Pairs]) -> Pairs:
    """(parameter, its values after an update with this gradient), one by one.

    Only for optimizers that torch itself defines: the rule is called on a copy of the optimizer that holds a copy of
    one parameter and of its state, and none of the user's hooks. Nothing for others, nor for those whose parameters
    depend on one another (LBFGS).
    """
    kind: Any = type(optimizer)
    if not f"{kind.__module__}.".startswith("torch.optim.") or kind.__name__ == "LBFGS":
        return
    rule = kind.step
    while hasattr(rule, "__wrapped__"):
        rule = rule.__wrapped__  # torch's own wrappers, which call everybody's hooks and set the grad mode
    for group in optimizer.param_groups:
        options = {key: _copied(value) for key, value in group.items() if key != "params"}
        inside = {id(p) for p in group["params"]}
        for parameter, gradient in gradients():
            if id(parameter) in inside:
                yield parameter, _alone(optimizer, rule, options, parameter, gradient)


def _alone(optimizer: Any, rule: Any, options: dict[str, Any], parameter: Tensor, gradient: Tensor) -> Tensor:
    kind: Any = type(optimizer)
    twin: Any = kind.__new__(kind)
    twin.__dict__.update({key: value for key, value in optimizer.__dict__.items() if key != "step"})
    copied = parameter.detach().clone().requires_grad_()
    copied.grad = gradient.to(parameter.dtype)
    twin.param_groups = [{**options, "params": [copied]}]
    state = optimizer.state.get(parameter) or {}
    twin.state = copy.copy(optimizer.state)  # a defaultdict: emptied, it stays one
    twin.state.clear()
    if state:
        twin.state[copied] = {key: _copied(value) for key, value in state.items()}
    with torch.no_grad():
        rule(twin)
    return copied.detach()


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else copy.copy(value)
