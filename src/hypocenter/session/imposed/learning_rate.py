"""`--impose-lr X`: every update is made with this learning rate; the schedule goes on as if nothing were.

The rate stands in the optimizer's groups only while it steps and is put back afterwards, so that a scheduler finds what
it left there. Decoupled weight decay is multiplied by the rate and so follows it; L2 in the gradient too. With rate 0
no parameter changes; momenta and other state of the optimizer do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.optim.optimizer as optimizer_hooks

from hypocenter.session.imposed.refuse import ImposeError


class LearningRate:
    """Puts the rate in before an optimizer steps (`enter`) and takes it out after it (`leave`); calls may be nested."""

    def __init__(self, rate: float, fail: Callable[[ImposeError], Any]) -> None:
        self._rate, self._fail = rate, fail
        self._depth = 0
        self._kept: list[tuple[dict[str, Any], Any]] = []

    def attach_first(self) -> Callable[[], None]:
        """Hook in before all others that look at an optimizer that is about to step; returns the undo."""
        return optimizer_hooks.register_optimizer_step_pre_hook(lambda optimizer, *_: self.enter(optimizer)).remove

    def attach_last(self) -> Callable[[], None]:
        """Hook in after all others that look at an optimizer that has stepped; returns the undo."""
        return optimizer_hooks.register_optimizer_step_post_hook(lambda *_: self.leave()).remove

    def enter(self, optimizer: Any) -> None:
        """Put the rate into the groups of an optimizer that is about to step: torch's, or a framework's wrapper."""
        if torch.compiler.is_compiling():
            return
        self._depth += 1
        held = {id(group) for group, _ in self._kept}
        for group in groups_of(optimizer):
            if id(group) in held or not group.get("params"):
                continue
            if "lr" not in group:
                self._fail(_without_rate(optimizer, group))
            self._kept.append((group, group["lr"]))
            group["lr"] = _like(group["lr"], self._rate)

    def leave(self) -> None:
        """Put the program's own rates back: the optimizer has stepped, or skipped."""
        if torch.compiler.is_compiling():
            return
        self._depth = max(0, self._depth - 1)
        if self._depth:
            return
        kept, self._kept = self._kept, []
        for group, rate in kept:
            group["lr"] = rate


def groups_of(optimizer: Any) -> Iterator[dict[str, Any]]:
    """Yield the parameter groups of an optimizer and of those that it wraps."""
    seen: set[int] = set()
    while optimizer is not None and id(optimizer) not in seen and len(seen) < 8:
        seen.add(id(optimizer))
        groups = getattr(optimizer, "param_groups", None)
        yield from (group for group in groups or () if isinstance(group, dict))
        optimizer = getattr(optimizer, "optimizer", None)


def _like(old: Any, rate: float) -> Any:
    return torch.full_like(old, rate) if isinstance(old, torch.Tensor) else rate


def _without_rate(optimizer: Any, group: dict[str, Any]) -> ImposeError:
    kind = type(optimizer).__name__
    known = [key for key in group if key != "params"]
    return ImposeError(
        f"no learning rate can be imposed on {kind}", where="--impose-lr",
        why=f"its groups have no 'lr', only {', '.join(map(str, known)) or 'parameters'}",
        fix="use an optimizer with a learning rate, or leave the option out",
    )  # fmt: skip
