"""What an optimizer meant to add to a weight, recomputed from its state after the step and its hyper-parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypocenter.optimizers.rule import RULES, Rule, decayed

Array = Any  # see hypocenter.session.framework


def _rule(family: str) -> Rule:
    return next(rule for rule in RULES.entries().values() if family in rule.classes)


STATES = {family: tuple(_rule(family).states) for family in ("SGD", "Adam", "AdamW")}
"""Families, and the element-wise state that the formula of each reads."""


def intended(
    family: str, group: Mapping[str, Any], weight: Array, grad: Array, state: Mapping[str, Any]
) -> Array | None:
    """Return the update that the formula asks for; None when the state lacks what it needs.

    Args:
        family: of STATES.
        group: hyper-parameters in torch's words, the entry of `param_groups`.
        weight: before the step, in a wide format.
        grad: as the step used it, likewise.
        state: after the step; tensors of the same elements in the same format, and `step`.
    """
    rule = _rule(family)
    options = rule.read(group, (family,), lambda value: _number(value, grad))
    if options is None:
        return None
    now = {key: _number(value, grad) if key == "step" else value for key, value in state.items()}
    try:
        return rule.change(weight, rule.formula.direction(decayed(weight, grad, options), now, options), options)
    except KeyError:
        return None


def _number(value: Any, like: Array) -> Any:
    """Return a hyper-parameter as a number; a tensor on a device stays there, so that nobody waits for it."""
    if not hasattr(value, "dtype"):
        return value
    is_elsewhere = getattr(getattr(value, "device", None), "type", "cpu") != "cpu"
    return value.detach().to(like.dtype) if is_elsewhere else float(value)
