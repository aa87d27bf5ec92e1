"""Parameters and optimizer state as another good run would have them: carried from one calibrated step to the next.

After an update with other gradients a run trains on from other parameters, and Adam makes large steps of small
gradients: from the second step on most of what two good runs are apart comes from there. So each sample has a
trajectory of its own: its gradients update copies of parameters and state, and these copies stand in for the
parameters when the next step is replayed.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hypocenter.tap.tree import flatten


@dataclass(frozen=True, slots=True, kw_only=True)
class Shadow:
    """A parameter of the run, and what it is in the sample."""

    parameter: Tensor
    values: Tensor
    state: dict[str, Any]

    def tensors(self) -> Iterator[Tensor]:
        """All that it holds."""
        yield self.values
        for _, value in flatten(self.state, ""):
            yield value


class Trajectory:
    """The parameters of one sample. As the run's own until the first update."""

    def __init__(self) -> None:
        self._shadows: dict[int, Shadow] = {}
        self._next: dict[int, Shadow] = {}

    @property
    def has_left(self) -> bool:
        """Whether it is somewhere else than the run."""
        return bool(self._shadows)

    @property
    def n_bytes(self) -> int:
        """What all its copies occupy, those of the step to come included."""
        shadows = (self._shadows | self._next).values()
        return sum(t.numel() * t.element_size() for shadow in shadows for t in shadow.tensors())

    @contextlib.contextmanager
    def in_place(self) -> Generator[None, None, None]:
        """The run's parameters hold the sample's values inside this block, and their own storage again after it."""
        own: list[tuple[Tensor, Tensor]] = []
        try:
            for shadow in self._shadows.values():
                own.append((shadow.parameter, shadow.parameter.data))
                shadow.parameter.data = shadow.values
            yield
        finally:
            for parameter, data in own:
                parameter.data = data

    def update(self, optimizer: Any, gradients: Iterable[tuple[Tensor, Tensor]]) -> list[Shadow]:
        """What an update with these gradients makes of the sample. It counts once `go_on` is called."""
        self._next = {id(s.parameter): s for s in updated(optimizer, gradients, self._shadows)}
        return list(self._next.values())

    def go_on(self) -> None:
        """The run has updated."""
        self._shadows |= self._next
        self._next = {}

    def stay(self) -> None:
        """The run has skipped its update."""
        self._next = {}

    def come_back(self) -> None:
        """To where the run is: steps in between were not seen."""
        self._shadows, self._next = {}, {}


def updated(optimizer: Any, gradients: Iterable[tuple[Tensor, Tensor]], shadows: dict[int, Shadow]) -> Iterator[Shadow]:
    """Parameters after an update with other gradients, one by one; the optimizer and its parameters are left alone.

    Only for optimizers that torch itself defines: the rule is called on a copy of the optimizer that holds a copy of
    one parameter and of its state, and none of the user's hooks. Nothing for others, nor for LBFGS, whose parameters
    depend on one another.

    Args:
        shadows: by id of the parameter, where the copies start from; the run's own where there is none.
    """
    kind: Any = type(optimizer)
    if not f"{kind.__module__}.".startswith("torch.optim.") or kind.__name__ == "LBFGS":
        return
    rule = kind.step
    while hasattr(rule, "__wrapped__"):
        rule = rule.__wrapped__  # torch's own wrappers, which call everybody's hooks and set the grad mode
    group_of = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    for parameter, gradient in gradients:
        group = group_of.get(id(parameter))
        if group is not None:
            start = shadows.get(id(parameter)) or Shadow(
                parameter=parameter, values=parameter.detach(), state=optimizer.state.get(parameter) or {}
            )
            yield _alone(optimizer, rule, group, start, gradient)


def _alone(optimizer: Any, rule: Any, group: dict[str, Any], start: Shadow, gradient: Tensor) -> Shadow:
    kind: Any = type(optimizer)
    twin: Any = kind.__new__(kind)
    twin.__dict__.update({key: value for key, value in optimizer.__dict__.items() if key != "step"})
    copied = start.values.clone().requires_grad_()
    copied.grad = gradient.to(copied.dtype)
    options = {key: _copied(value) for key, value in group.items() if key != "params"}
    twin.param_groups = [{**options, "params": [copied]}]
    twin.state = copy.copy(optimizer.state)  # a defaultdict: emptied, it stays one
    twin.state.clear()
    if start.state:
        twin.state[copied] = {key: _copied(value) for key, value in start.state.items()}
    with torch.no_grad():
        rule(twin)
    return Shadow(parameter=start.parameter, values=copied.detach(), state=twin.state[copied])


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else copy.copy(value)
