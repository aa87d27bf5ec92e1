"""Which of what a loss was computed from carries gradient: values are followed from parameters to the loss.

Values flow through every operation; gradients stop at `detach()`, `.data` and what runs under `no_grad()`. Where a
value that was computed from a trainable parameter goes into an operation that gradients do flow through, and brings no
gradient along, is a cut. Programs have cuts on purpose (targets, codes, teachers); what counts is how many there were
before.

What lies inside a `torch.autograd.Function` has a backward of its own and is no cut. Nothing is known of values that
pass through Python (`.item()`), and of integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from hypocenter.tap.tree import tensors

_NODE = "_hypocenter_flow"  # on tensors that a replay makes


@dataclass(slots=True, eq=False)
class _Node:
    """One operation on values that come from parameters."""

    site: str
    name: str
    is_recorded: bool  # by autograd
    given: list[tuple[_Source, bool]] = field(default_factory=list)  # and whether it has a gradient


_Source = _Node | int  # what made a value, or the number of a parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """From parameters to a loss.

    Attributes:
        n_values: how many values were given to operations on the way.
        n_gradients: how many of them brought their gradient.
        cuts: the module that each cut is in, and the operation that was given the value.
        cut_off: numbers of the parameters that are behind a cut, in order of use.
    """

    n_values: int
    n_gradients: int
    cuts: tuple[tuple[str, str], ...]
    cut_off: tuple[int, ...]


class Flow(TorchFunctionMode):
    """Follows values while a micro-batch is done again.

    Args:
        parameters: that are trained.
        site: the module that is called now.
    """

    def __init__(self, parameters: Iterable[Tensor], site: Callable[[], str]) -> None:
        super().__init__()
        self._numbers = {id(p): number for number, p in enumerate(parameters)}
        self._site = site
        self._is_over = False

    def restart(self) -> None:
        """It is done again from the beginning."""
        self._is_over = False

    def starts_from(self, seeds: Any) -> None:
        """Forward is over: what backward does is not followed."""
        self._is_over = True

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._is_over and func is not torch.Tensor.detach:  # of the roots
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        given = self._given(args, kwargs)  # before it runs: it may write to them
        out = func(*args, **kwargs)
        if given:
            node = _Node(self._site(), name, torch.is_grad_enabled(), given)
            made = args[:1] if name == "__setitem__" or out is None else out
            for _, tensor in tensors(made):
                if tensor.is_floating_point() and id(tensor) not in self._numbers:
                    setattr(tensor, _NODE, node)
        return out

    def _given(self, args: Any, kwargs: Any) -> list[tuple[_Source, bool]]:
        found: list[tuple[_Source, bool]] = []
        for value in (*args, *kwargs.values()):
            if isinstance(value, (Tensor, list, tuple)):
                for _, tensor in tensors(value):
                    source = self._numbers.get(id(tensor), getattr(tensor, _NODE, None))
                    if source is not None:
                        found.append((source, tensor.requires_grad))
        return found


def paths(roots: Iterable[Tensor]) -> Paths | None:
    """Of the loss that these are copies of; None where nothing is known of it.

    Args:
        roots: what was detached from it within the mode.
    """
    copies = [node for root in roots if isinstance(node := getattr(root, _NODE, None), _Node)]
    ends = [source for copy in copies for source, has_gradient in copy.given if has_gradient]
    if not ends:
        return None
    n_gradients, cuts = _gradients(ends)
    behind, _ = _values([source for _, source in cuts])
    return Paths(
        n_values=_values(ends)[1], n_gradients=n_gradients, cuts=tuple((node.site, node.name) for node, _ in cuts),
        cut_off=tuple(sorted({each for each in behind if isinstance(each, int)})),
    )  # fmt: skip


def _gradients(ends: Iterable[_Source]) -> tuple[int, list[tuple[_Node, _Source]]]:
    """Back along gradients: how many values brought theirs, and which did not, each with what it was given to."""
    n, cuts, found, waiting = 0, list[tuple[_Node, _Source]](), set[_Source](), list(ends)
    while waiting:
        source = waiting.pop()
        if source in found or isinstance(source, int):
            continue
        found.add(source)
        for other, has_gradient in source.given:
            if has_gradient or not source.is_recorded:  # inside an autograd.Function all of it is followed
                n += 1
                waiting.append(other)
            else:
                cuts.append((source, other))
    return n, cuts


def _values(ends: Iterable[_Source]) -> tuple[set[_Source], int]:
    """All that these were computed from, and how many values were given in all."""
    n, found, waiting = 0, set[_Source](), list(ends)
    while waiting:
        source = waiting.pop()
        if source not in found:
            found.add(source)
            if isinstance(source, _Node):
                n += len(source.given)
                waiting += [other for other, _ in source.given]
    return found, n
