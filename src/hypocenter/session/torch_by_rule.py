"""The law "update" in torch: what an optimizer holds before its rule is applied, and after it.

Gradients and options that hooks of the optimizer change inside the step are those that count.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.optim.optimizer as hooks_of_all
from torch import Tensor
from torch.optim import Optimizer

from hypocenter.nouns import Source, replace
from hypocenter.optimizers.options import Options
from hypocenter.optimizers.predicted import COMPUTED_IN
from hypocenter.optimizers.rule import rule_of
from hypocenter.session.learning_rate import number_of
from hypocenter.session.observer import Context
from hypocenter.session.observers import by_rule
from hypocenter.session.observers.by_rule import STEP, Group, mixes
from hypocenter.session.observers.grid import name_of
from hypocenter.tap.source import source_of

_PLAIN = frozenset({int, float, bool, str, type(None)})  # what an option is, if it is no tensor that may change


class ByRule(by_rule.ByRule[Context]):
    """Looks around the rule itself: what hooks before it have done is done."""

    def before_rule(self, optimizer: Optimizer, step: int) -> None:
        """Gradients are final."""
        with torch.no_grad():
            self.take(optimizer, step)

    def after_rule(self, optimizer: Optimizer) -> None:
        """Unless a fused optimizer has left the update out by itself."""
        found = getattr(optimizer, "found_inf", None)
        if isinstance(found, Tensor) and bool(found.item()):
            self._before = ()
        with torch.no_grad():
            self.compare(optimizer)

    def groups(self, optimizer: Optimizer) -> Iterator[tuple[Group, Sequence[Tensor]]]:
        """Rules are known of torch's own classes: others may do anything."""
        scale = getattr(optimizer, "grad_scale", None)  # of fused optimizers, which take it out themselves
        for number, told in enumerate(optimizer.param_groups):
            group = Group(
                number=number, options=_options(optimizer, told), mixes=mixes(told),
                eps=number_of(told.get("eps")) or 0.0, powers_in="float32" if told.get("capturable") else "float64",
                scale=1.0 if scale is None else float(scale),
            )  # fmt: skip
            yield group, told["params"]

    def is_dense(self, parameter: Tensor) -> bool:
        """As autograd has left it."""
        gradient = parameter.grad
        return (
            gradient is not None
            and gradient.layout is torch.strided
            and gradient.dtype == parameter.dtype
            and name_of(parameter.dtype) in COMPUTED_IN
        )

    def changed_in_step(self, optimizer: Optimizer, before: Group) -> Group:
        """As the group is now. Who changes gradients there has taken the scale out."""
        options = _options(optimizer, optimizer.param_groups[before.number])
        return replace(before, options=options or before.options, scale=1.0)

    def held(self, optimizer: Optimizer, parameter: Tensor) -> Mapping[str, Any]:
        """State has an element for each of the weight, or is a number."""
        found, shape, gradient = dict[str, Any](value=parameter), parameter.shape, parameter.grad
        if gradient is not None and gradient.layout is torch.strided:
            found["grad"] = gradient
        state: Any = optimizer.state.get(parameter)
        for name, value in (state or {}).items():
            is_tensor = type(value) is Tensor or isinstance(value, Tensor)
            if not is_tensor or (name == STEP and value.numel() == 1) or value.shape == shape:
                found[str(name)] = value
        return found

    def hook(self, optimizer: Optimizer) -> Source | None:
        """The first hook that the program has put around the step of this optimizer, or of all."""
        names = ("_optimizer_step_post_hooks", "_optimizer_step_pre_hooks")
        everybodys = ("_global_optimizer_post_hooks", "_global_optimizer_pre_hooks")
        own: list[Mapping[int, Any]] = [getattr(optimizer, name, {}) for name in names]
        own += [getattr(hooks_of_all, name, {}) for name in everybodys]
        for hook in (each for hooks in own for each in hooks.values()):
            code = getattr(hook, "__code__", None)
            if code is not None and not str(getattr(hook, "__module__", "")).startswith("hypocenter."):
                return source_of(code.co_filename, code.co_firstlineno, code.co_name)
        return None


def _options(optimizer: Optimizer, group: Mapping[str, Any]) -> Options | None:
    kind = type(optimizer).__name__
    if not type(optimizer).__module__.startswith("torch.optim."):
        return None
    told = tuple([(name, value) for name, value in group.items() if name != "params"])
    is_plain = all(_PLAIN.issuperset(map(type, v)) if type(v) is tuple else type(v) in _PLAIN for _, v in told)
    return _known(kind, told) if is_plain else _read(kind, group)


@functools.lru_cache(maxsize=32)
def _known(kind: str, told: tuple[tuple[str, Any], ...]) -> Options | None:
    """The same again for a group that tells the same: nearly always."""
    return _read(kind, dict(told))


def _read(kind: str, group: Mapping[str, Any]) -> Options | None:
    rule = rule_of((kind,), group)
    return None if rule is None or kind not in rule.classes else rule.read(group, (kind,), number_of)
