"""The backward of an autograd function of the program's own is the derivative of its forward, or it is not.

Both are asked for the same number, in float64 and at the inputs of the run: how much a random sum of the outputs
changes along a random direction of the inputs, by central differences and by what backward gives. A function that is
not meant to be differentiated as it computes is left alone: one that has gradients where it is flat (rounding with a
straight-through gradient, spikes), one that jumps, one that gives its input back (reversed or scaled gradients,
communication), one that draws at random.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from hypocenter.relations.called import FunctionCall
from hypocenter.tap.state import seeded
from hypocenter.tap.tree import replace_tensors, tensors

_N_DIRECTIONS = 5
_STEPS = (1e-4, 2.5e-5)  # relative to the size of the inputs
_SMOOTH, LIMIT = 1e-3, 0.02  # relative: of the two steps to each other, and of backward to them
_MOST_ELEMENTS = 1 << 20
_SAME = 0.1  # relative, L2: of what it gives in float64 to what it gives in its own format, even one of eight bits


def error_of(call: FunctionCall, given: float = 1.0) -> tuple[float, str] | None:
    """Return the relative error of this function's backward, and by which argument it is largest.

    None: nobody can tell, or it is not meant to be it.

    Args:
        given: the gradient that backward gets for an output of one number: a loss's own function may take it for 1.
    """
    args = [t for _, t in tensors(call.args)]
    if not args or sum(t.numel() for t in args) > _MOST_ELEMENTS or any(map(callable, call.args)):
        return None
    try:
        with torch.enable_grad(), torch.autocast(args[0].device.type, enabled=False):
            return _error(_Function(call), given)
    except Exception:  # it is made for another format, or for what is there only in the run
        return None


def given_to(function: type[torch.autograd.Function], roots: Sequence[Tensor]) -> float:
    """Return the gradient that differs most from 1 of those that backward from `roots` gives to calls of a function.

    1.0 if none does, or nobody can tell; of calls whose first output is one number alone.
    """
    kind: Any = vars(function).get("_backward_cls")
    nodes = [root.grad_fn for root in roots if root.grad_fn is not None]
    seen: set[Any] = set(nodes)
    for node in nodes:  # which grows
        behind = [each for each, _ in node.next_functions if each is not None and each not in seen]
        seen.update(behind)
        nodes += behind
    edges = [GradientEdge(node, 0) for node in nodes if kind is not None and type(node) is kind]
    if not edges:
        return 1.0
    heads = [root.sum() for root in roots if root.grad_fn is not None]
    found = torch.autograd.grad(heads, edges, retain_graph=True, allow_unused=True)
    told = [float(each) for each in cast("Sequence[Tensor | None]", found) if each is not None and each.numel() == 1]
    return max((each for each in told if each and math.isfinite(each)), key=lambda each: abs(each - 1.0), default=1.0)


class _IsChosen(Exception):
    """Raised where backward gives a gradient although nothing changes: it is not meant to be the derivative."""


class _Function:
    """A call as a function, in float64, of the inputs that receive gradients."""

    def __init__(self, call: FunctionCall) -> None:
        self._call = call
        named = [(path, t) for path, t in tensors(call.args) if t.requires_grad and t.is_floating_point() and t.numel()]
        self.names = [path for path, _ in named]
        self._inputs = [t for _, t in named]
        self.at = [t.detach().double() for t in self._inputs]

    def __call__(self, at: Sequence[Tensor], seed: int = 0) -> list[Tensor]:
        """Call the function with these inputs and return its floating-point outputs."""
        swap = {id(old): new for old, new in zip(self._inputs, at, strict=True)}

        def own(tensor: Tensor) -> Tensor:
            new = swap.get(id(tensor))
            if new is not None:
                return new.clone()  # it may write to it
            return tensor.detach().double() if tensor.is_floating_point() else tensor.detach().clone()

        seeded(seed)
        return self._of(own)

    def _of(self, own: Callable[[Tensor], Tensor]) -> list[Tensor]:
        found = self._call.function.apply(*replace_tensors(self._call.args, own))
        return [t for _, t in tensors(found) if t.is_floating_point()]

    def computes_in_float64(self, outputs: Sequence[Tensor]) -> bool:
        """Return whether its own format gives about the same: a kernel that is given an address may misread float64."""
        seeded(0)
        in_own = self._of(lambda tensor: tensor.detach().clone())
        pairs = [(a.detach().double(), b.detach().double()) for a, b in zip(outputs, in_own, strict=True)]
        return all(a.shape == b.shape and bool((a - b).norm() <= _SAME * b.norm()) for a, b in pairs)

    def moved(self, which: int, by: Tensor) -> list[Tensor]:
        """Return the outputs, without graph, after `by` is added to one of the inputs."""
        return [y.detach() for y in self([x + by if i == which else x for i, x in enumerate(self.at)])]


def _error(function: _Function, given: float) -> tuple[float, str] | None:
    first, again = function(function.at), function(function.at, seed=1)
    if not first or not all(bool(torch.isfinite(x).all()) for x in function.at):
        return None
    if not all(torch.equal(a, b) for a, b in zip(first, again, strict=True)):
        return None
    if not function.computes_in_float64(first):
        return None
    if any(y.shape == x.shape and torch.equal(y.detach(), x) for y in first for x in function.at):
        return None
    generator = torch.Generator().manual_seed(0)
    errors: list[tuple[float, str]] = []
    for which, name in enumerate(function.names):
        found = [_along(function, which, generator, given) for _ in range(_N_DIRECTIONS)]
        known = [each for each in found if each is not None]
        if 2 * len(known) > len(found):  # over directions the mean squares are those of the two Jacobians
            off, usual = (sum(each[i] ** 2 for each in known) for i in (0, 1))
            errors.append((math.sqrt(off / usual), name))
    return max(errors, default=None)


def _along(function: _Function, which: int, generator: torch.Generator, given: float) -> tuple[float, float] | None:
    """Return how far backward is off for one input along one random direction, and the usual size of the result."""
    leaves = [x.clone().requires_grad_() for x in function.at]
    outputs = function(leaves)
    heard = [at for at, y in enumerate(outputs) if y.requires_grad]
    size = float(leaves[which].detach().abs().mean()) or 1.0
    along = _drawn(leaves[which], generator) * size
    if not heard:
        return None
    ends = {step: (function.moved(which, step * along), function.moved(which, -step * along)) for step in _STEPS}
    up, down = ends[_STEPS[0]]
    weights = {
        at: torch.full_like(outputs[at], given) if outputs[at].numel() == 1 else _drawn(outputs[at], generator)
        for at in heard
    }

    def backward(weigh: Callable[[int], Tensor]) -> Tensor | None:
        heads = [weigh(at) for at in heard]
        return torch.autograd.grad([outputs[at] for at in heard], [leaves[which]], heads, True, allow_unused=True)[0]

    gradient = backward(weights.__getitem__)
    if gradient is None:
        return None
    flat = {at: up[at] == down[at] for at in heard}
    if any(bool(each.any()) for each in flat.values()):
        at_flat = backward(lambda at: torch.where(flat[at], weights[at], 0.0))
        if at_flat is not None and bool(at_flat.any()):
            raise _IsChosen
    rates = [
        sum(float(((up[at] - down[at]) * weights[at]).sum()) for at in heard) / (2 * step)
        for step, (up, down) in ends.items()
    ]
    terms = gradient.double() * along
    by_backward, rate = float(terms.sum()), rates[-1]
    usual = max(abs(rate), float(terms.square().sum().sqrt()))
    if rate == 0.0 or not math.isfinite(by_backward) or abs(rates[0] - rate) > _SMOOTH * usual:
        return None
    return abs(by_backward - rate), usual


def _drawn(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator, dtype=torch.float64, device="cpu").to(like.device)
