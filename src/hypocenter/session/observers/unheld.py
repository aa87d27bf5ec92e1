"""Trained parameters that no optimizer can hold: they are in a plain list, or made anew in forward. For HC233.

`parameters()` does not look into lists, tuples and dicts, so no optimizer is given what lies there; and what forward
makes is newer than the optimizer. Both get a gradient, which the graph of the loss tells, and nobody uses it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from hypocenter import schedule
from hypocenter.detect.law_rows import HIDDEN, MADE_ANEW, NOT_STEPPED
from hypocenter.nouns import replace
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.session.observers.optimizer_rows import number_row
from hypocenter.session.observers.sampled import sample
from hypocenter.tap.weakly import Ref

LAST = 64  # step
LOOKS = 4  # that a parameter must have been outside at: an optimizer may be made later
ELEMENTS, FEWEST = 64, 4  # of a parameter that are looked at, and that are needed to tell two apart
NODES = 20_000  # of a graph
KEPT = 1024  # parameters that were made, before those that are gone are let go of
FRAMES = 64  # from a registration up to the call of a module
HANDED_ON = 0.99  # cosine of two gradients, one of which comes from the other


class Unheld(Observer):
    """Writes a row for each parameter that got a gradient at every look so far, is in no optimizer, and stays."""

    until = LAST

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._is_due = schedule.parse("doubling")
        self._leaves: dict[int, tuple[Ref[Tensor], str | None]] = {}  # of the step under way, with their names
        self._made: dict[int, Ref[Tensor]] = {}  # by a call of a module, after the first step
        self._values: dict[int, tuple[Ref[Tensor], Tensor]] = {}  # of a hidden one, at the first look
        self._excused: dict[int, Ref[Tensor]] = {}  # what they are or get is that of others
        self._looks: dict[int | str, list[int]] = {}  # steps at which it was outside

    def attach(self) -> Callable[[], None]:
        """Hear of parameters that modules are given; returns the undo."""
        return torch_module.register_module_parameter_registration_hook(self._given).remove

    def _given(self, module: nn.Module, name: str, parameter: Tensor | None) -> None:
        step = self.context.clock.step
        if parameter is None or not 0 < step <= LAST:  # in the first one a module may be completed
            return
        if len(self._made) > KEPT:
            self._made = {key: ref for key, ref in self._made.items() if ref() is not None}
        if _is_in_a_call():
            self._made[id(parameter)] = Ref(parameter)

    def before_backward(self, roots: Sequence[Any]) -> None:
        """Note the leaves of the graph while it is there, and what forward has made with it."""
        if self._is_due(self.context.clock.step):
            name = self.context.names.param_name
            self._leaves.update((id(p), (Ref(p), name(p))) for p in _leaves(root.grad_fn for root in roots))

    def before_update(self, update: Update) -> None:
        """Find parameters that got a gradient and that no optimizer holds."""
        leaves, self._leaves = self._leaves, {}
        framework = self.context.framework
        if not leaves or not update.check.is_finite or framework.optimizer(update.optimizer) is None:
            return
        own = set(map(id, update.parameters))
        models = [m for m in self.context.names.roots() if any(id(p) in own for p in m.parameters())]
        registered = {id(p) for model in models for p in model.parameters()}
        found = {  # a layer that no forward calls, but a `training_step`, has a name of its own
            id(p): (p, name)
            for ref, name in leaves.values()
            if isinstance(p := ref(), nn.Parameter) and p.grad is not None
            and (id(p) not in registered or self._is_made(p))
        }  # fmt: skip
        if found.keys() <= own or not own & leaves.keys():
            return
        held = {id(p): p for each in self.context.optimizers() for group in each.param_groups for p in group["params"]}
        if found.keys() <= held.keys() or framework.has_copies(list(held.values())):
            return
        others = [p for p in held.values() if isinstance(p, Tensor) and p.grad is not None]
        inside, outside = self._in_containers(models), found.keys() - held.keys()
        hidden = [each for each in inside if id(each[2]) in outside]
        made = {name: p for key, (p, name) in found.items() if name and key in outside and self._is_made(p)}
        for p in (*made.values(), *(p for _, _, p in hidden)):
            if any(_is_of(p, other) for other in others):
                self._excused[id(p)] = Ref(p)
        excused = {container for _, container, p in inside if self._is_excused(p)}
        told = [
            (name, "", MADE_ANEW, since)
            for name, p in sorted(made.items(), key=lambda each: each[0])
            if not self._is_excused(p) and (since := self._since(name, update.step)) is not None
        ]
        told += [
            (name, where, HIDDEN, since)
            for name, where, p in hidden
            if where not in excused and self._stays(p) and (since := self._since(id(p), update.step)) is not None
        ]
        for name, where, kind, since in told:
            order, n_steps = self.context.clock.next_order(), update.step - since
            row = number_row(name, NOT_STEPPED, update.step, order, n_steps, module=kind, call=len(told))
            self.rows.append(replace(row, op=where))

    def _is_made(self, parameter: Tensor) -> bool:
        ref = self._made.get(id(parameter))
        return ref is not None and ref() is parameter

    def _is_excused(self, parameter: Tensor) -> bool:
        ref = self._excused.get(id(parameter))
        return ref is not None and ref() is parameter

    def _since(self, key: int | str, step: int) -> int | None:
        """Return the step at which it was first seen outside, once it was seen often enough; else None."""
        steps = self._looks.setdefault(key, [])
        steps.append(step)
        return steps[0] if len(steps) == LOOKS else None

    def _stays(self, parameter: Tensor) -> bool:
        """Return whether the parameter has kept its values: nobody moves it, by hand or in another way."""
        values = sample(parameter.detach(), ELEMENTS)
        ref, before = self._values.get(id(parameter), (None, None))
        if values is None:
            return False
        if before is None or ref is None or ref() is not parameter:
            self._values[id(parameter)] = Ref(parameter), values.clone()
            return True
        return before.shape == values.shape and bool((before == values).all())

    def _in_containers(self, models: Sequence[nn.Module]) -> list[tuple[str, str, Tensor]]:
        """Return (name, container, parameter) of what lies in a list, tuple or dict of these models."""
        inside = {id(module) for model in models for module in model.modules()}
        return [
            (name, container, p)
            for prefix, module in self.context.names.modules()
            if id(module) in inside
            for container, name, p in _in_containers(prefix, module)
        ]


def _is_in_a_call() -> bool:
    """Return whether this comes from the call of a module."""
    frame = sys._getframe(2)
    for _ in range(FRAMES):
        if frame is None or frame.f_code.co_name == nn.Module._call_impl.__name__:
            return frame is not None
        frame = frame.f_back
    return False


def _leaves(nodes: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors that a backward from these nodes adds gradients to."""
    left = [node for node in nodes if node is not None]
    seen = set(left)
    while left and len(seen) < NODES:
        node = left.pop()
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, Tensor):
            yield leaf
        new = {after for after, _ in node.next_functions if after is not None} - seen
        seen |= new
        left += new


def _in_containers(prefix: str, module: nn.Module) -> Iterator[tuple[str, str, Tensor]]:
    """Yield (container, name, parameter) of what lies in a list, tuple or dict that a module holds.

    Who puts one thing alone into a list does that to hide it, and who sets it to evaluation does not train it.
    """
    for key, value in list(vars(module).items()):
        if key.startswith("_") or not isinstance(value, (list, tuple, dict)) or len(value) < 2:
            continue
        name = f"{prefix}.{key}" if prefix else key
        for index, each in list(value.items()) if isinstance(value, dict) else enumerate(value):
            if isinstance(each, nn.Module) and each.training:
                yield from ((name, f"{name}[{index!r}].{inner}", p) for inner, p in each.named_parameters())
            elif isinstance(each, Tensor):
                yield name, f"{name}[{index!r}]", each


def _is_of(parameter: Tensor, other: Tensor) -> bool:
    """Return whether `parameter` is a copy of `other`, which an optimizer holds, or hands its gradient on to it."""
    if parameter.shape != other.shape:
        return False
    tensors = (parameter.detach(), other.detach(), parameter.grad, other.grad)
    values = [part for t in tensors if t is not None and (part := sample(t, ELEMENTS)) is not None]
    if len(values) < len(tensors) or len(set(map(len, values))) > 1 or len(values[0]) < FEWEST:
        return True  # that cannot be told
    mine, theirs, grad, other_grad = (v.double().cpu() for v in values)
    if float((mine - mine[0]).abs().max()) > 0.0 and torch.equal(mine, theirs):
        return True
    sizes = float(grad.norm() * other_grad.norm())
    return sizes == 0.0 or abs(float(grad @ other_grad)) >= HANDED_ON * sizes
