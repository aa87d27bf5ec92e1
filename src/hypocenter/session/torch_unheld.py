"""Trained parameters of torch that no optimizer can hold: see hypocenter.session.observers.unheld."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import Any

from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from hypocenter.session.observer import Context, Update
from hypocenter.session.observers import unheld
from hypocenter.session.observers.sampled import sample
from hypocenter.session.observers.unheld import ELEMENTS, LAST, contents
from hypocenter.tap.weakly import Ref

NODES = 20_000  # of a graph
KEPT = 1024  # parameters that were made, before those that are gone are let go of
FRAMES = 64  # from a registration up to the call of a module
HANDED_ON = 0.99  # cosine of two gradients, one of which comes from the other


class Unheld(unheld.Unheld[Context]):
    """Asks autograd whom a backward adds gradients to."""

    def attach(self) -> Callable[[], None]:
        """Hear of parameters that modules are given; returns the undo."""
        return torch_module.register_module_parameter_registration_hook(self._given).remove

    def _given(self, module: nn.Module, name: str, parameter: Tensor | None) -> None:
        step = self.context.clock.step
        if parameter is None or not 0 < step <= LAST:  # in the first one a module may be completed
            return
        if len(self.made) > KEPT:
            self.made = {key: ref for key, ref in self.made.items() if ref() is not None}
        if _is_in_a_call():
            self.made[id(parameter)] = Ref(parameter)

    def before_backward(self, roots: Sequence[Any]) -> None:
        """Note the leaves of the graph while it is there, and what forward has made with it."""
        if self.is_due(self.context.clock.step):
            name = self.context.names.param_name
            self.leaves.update((id(p), (Ref(p), name(p))) for p in _leaves(root.grad_fn for root in roots))

    def has_gradient(self, update: Update, parameter: Tensor) -> bool:
        """As it is now."""
        return isinstance(parameter, nn.Parameter) and parameter.grad is not None

    def hands_on(self, parameter: Tensor, other: Tensor) -> bool:
        """Where one gradient comes from the other they point the same way."""
        grads = [None if t.grad is None else sample(t.grad, ELEMENTS) for t in (parameter, other)]
        if any(grad is None for grad in grads) or len({len(grad) for grad in grads if grad is not None}) > 1:
            return True  # that cannot be told
        one, two = (grad.double().cpu() for grad in grads if grad is not None)
        sizes = float(one.norm() * two.norm())
        return sizes == 0.0 or abs(float(one @ two)) >= HANDED_ON * sizes

    def in_containers(self, models: Sequence[nn.Module], own: Set[int]) -> list[tuple[str, str, Tensor]]:
        """Also of modules that hold nothing else."""
        inside = {id(module) for model in models for module in model.modules()}
        return [
            each
            for name, module in self.context.names.modules()
            if id(module) in inside
            for each in contents(name, module, _parameters_of)
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


def _parameters_of(thing: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield (name below it, parameter); who sets a module to evaluation does not train it."""
    if isinstance(thing, nn.Module) and thing.training:
        yield from ((f".{name}", p) for name, p in thing.named_parameters())
    elif isinstance(thing, Tensor):
        yield "", thing
