"""Which of what a loss was computed from carries gradient: values are followed from parameters to the loss.

Values flow through every operation; gradients stop at `detach()`, `.data` and what runs under `no_grad()`. Where a
value that was computed from a trainable parameter goes into an operation that gradients do flow through, and brings no
gradient along, is a cut. Programs have cuts on purpose (targets, codes, teachers); what counts is how many there were
before. One kind nobody wants: a term that was made of gradients without a graph.

What lies inside a `torch.autograd.Function` has a backward of its own and is no cut. Nothing is known of values that
pass through Python (`.item()`), and of integers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from hypocenter.nouns import Source as Line
from hypocenter.tap.op_context import OpContext
from hypocenter.tap.tree import tensors

ADDS = frozenset({
    "add", "add_", "__add__", "__radd__", "__iadd__", "sub", "sub_", "__sub__", "__rsub__", "__isub__", "rsub", "stack",
    "cat", "concat", "hstack",
})  # fmt: skip
_SCALES = frozenset({
    "mul", "mul_", "__mul__", "__rmul__", "__imul__", "div", "div_", "__div__", "__truediv__", "__itruediv__", "neg",
    "__neg__", "sum", "mean", "nanmean", "to", "float", "double", "half", "bfloat16", "type", "reshape", "view",
    "squeeze", "unsqueeze", "flatten", "clone", "contiguous", "__getitem__",
})  # fmt: skip
_DETACHES = frozenset({"detach", "detach_", "__get__"})  # of `data`
_NUMBERS = frozenset({int, float, bool, type(None)})
_NODE = "_hypocenter_flow"  # on tensors that a replay makes


@dataclass(slots=True, eq=False)
class Node:
    """One operation on values that come from parameters.

    Attributes:
        given: what it was given, and whether that has a gradient.
        constants: of what adds: what has none, if other summands have one.
        gives_gradients: it is `torch.autograd.grad`.
        line: of that, in the program.
    """

    site: str
    name: str
    is_recorded: bool  # by autograd
    given: Sequence[tuple[Source, bool]] = ()
    constants: Sequence[tuple[Source, Tensor]] = ()
    gives_gradients: bool = False
    line: Line | None = None


Source = Node | int  # what made a value, or the number of a parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """From parameters to a loss.

    Attributes:
        n_values: how many values were given to operations on the way.
        n_gradients: how many of them brought their gradient.
        cuts: the module that each cut is in, and the operation that was given the value.
        cut_off: numbers of the parameters that are behind a cut, in order of use.
        constant: what gave the gradients that a term of the loss is made of, which has none itself.
    """

    n_values: int
    n_gradients: int
    cuts: tuple[tuple[str, str], ...]
    cut_off: tuple[int, ...]
    constant: Node | None = None


class Flow(TorchFunctionMode):
    """Follows values while a micro-batch is done again.

    Args:
        parameters: that are trained.
        context: where it is done again.
    """

    def __init__(self, parameters: Iterable[Tensor], context: OpContext) -> None:
        super().__init__()
        self._numbers = {id(p): number for number, p in enumerate(parameters)}
        self._context = context
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
        given = self._given((*args, *kwargs.values()) if kwargs else args)  # before it runs: it may write to them
        if not given:
            return func(*args, **kwargs)
        flags = [(source, tensor.requires_grad) for source, tensor in given]
        out = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        made = _tensors(args[:1] if name == "__setitem__" or out is None else out)
        made = [each for each in made if each.is_floating_point() and id(each) not in self._numbers]
        if made:
            node = Node(self._context.site, name, torch.is_grad_enabled(), flags)
            if name in ADDS and 0 < sum(has_gradient for _, has_gradient in flags) < len(flags):
                node.constants = [(source, tensor.detach()) for source, tensor in given if not tensor.requires_grad]
            if func is torch.autograd.grad:
                node.gives_gradients, node.line = True, self._context.line(sys._getframe(1))
            for tensor in made:
                setattr(tensor, _NODE, node)
        return out

    def _given(self, values: Iterable[Any]) -> list[tuple[Source, Tensor]]:
        found: list[tuple[Source, Tensor]] = []
        for value in values:
            if isinstance(value, Tensor):
                each: Sequence[Tensor] = (value,)
            elif isinstance(value, (list, tuple)):
                each = _tensors(value)  # type: ignore[reportUnknownArgumentType]
            else:
                continue
            for tensor in each:
                number = self._numbers.get(id(tensor))
                source = getattr(tensor, _NODE, None) if number is None else number
                if source is not None:
                    found.append((source, tensor))
        return found


def _tensors(value: Any) -> Sequence[Tensor]:
    """In it; of numbers and shapes, which most operations get, without a walk."""
    if isinstance(value, Tensor):
        return (value,)
    if type(value) in _NUMBERS or (isinstance(value, tuple) and _NUMBERS.issuperset(map(type, value))):  # type: ignore[reportUnknownArgumentType]
        return ()
    return [each for _, each in tensors(value)]


def paths(roots: Iterable[Tensor]) -> Paths | None:
    """Of the loss that these are copies of; None where nothing is known of it.

    Args:
        roots: what was detached from it within the mode; they let go of what is known.
    """
    copies = [node for root in roots if isinstance(node := vars(root).pop(_NODE, None), Node)]
    ends = [source for copy in copies for source, has_gradient in copy.given if has_gradient]
    if not ends:
        return None
    n_gradients, cuts = _gradients(ends)
    behind, _ = _values([source for _, source in cuts])
    return Paths(
        n_values=_values(ends)[1], n_gradients=n_gradients, cuts=tuple((node.site, node.name) for node, _ in cuts),
        cut_off=tuple(sorted({each for each in behind if isinstance(each, int)})), constant=constant_term(ends),
    )  # fmt: skip


def _gradients(ends: Iterable[Source]) -> tuple[int, list[tuple[Node, Source]]]:
    """Back along gradients: how many values brought theirs, and which did not, each with what it was given to."""
    n, cuts, found, waiting = 0, list[tuple[Node, Source]](), set[Source](), list(ends)
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


def constant_term(ends: Iterable[Source]) -> Node | None:
    """What gave the gradients that a term of the loss is made of, where that term has none itself; else None.

    Such a term is a constant that was added to the loss: it trains nothing. What is scaled by gradients, or made of
    weights that were moved along them, has a gradient of its own, and is not spoken of; nor is what the program has
    detached itself after it took them.
    """
    waiting, found = [each for each in ends if isinstance(each, Node)], set[Node]()
    while waiting:
        node = waiting.pop()
        live = [source for source, has_gradient in node.given if has_gradient]
        if node in found or not (node.name in ADDS or (node.name in _SCALES and len(live) == 1)):
            continue
        found.add(node)
        for source, value in node.constants:
            if (taken := _taken(source)) is not None and bool(value.count_nonzero()):
                return taken
        waiting += [source for source in live if isinstance(source, Node)]
    return None


def _taken(term: Source) -> Node | None:
    """What gave the gradients that this is made of; not beyond what was detached on purpose."""
    waiting, found = [term], set[Source]()
    while waiting:
        source = waiting.pop()
        if source in found or isinstance(source, int) or not source.is_recorded:
            continue
        found.add(source)
        if source.gives_gradients:
            return source
        if source.name not in _DETACHES:
            waiting += [other for other, _ in source.given]
    return None


def _values(ends: Iterable[Source]) -> tuple[set[Source], int]:
    """All that these were computed from, and how many values were given in all."""
    n, found, waiting = 0, set[Source](), list(ends)
    while waiting:
        source = waiting.pop()
        if source not in found:
            found.add(source)
            if isinstance(source, Node):
                n += len(source.given)
                waiting += [other for other, _ in source.given]
    return found, n
