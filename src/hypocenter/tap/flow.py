"""Values of torch followed from parameters to the loss while a micro-batch is done again: see hypocenter.tap.paths."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from hypocenter.tap.op_context import OpContext
from hypocenter.tap.paths import ADDS, DETACHES, Counted, Node, Paths, Source, paths_back
from hypocenter.tap.tree import tensors

_NUMBERS = frozenset({int, float, bool, type(None)})
_NODE = "_hypocenter_flow"  # on tensors that a replay makes
_COUNTED = "_hypocenter_counted"  # on those that are made of whole numbers and truth values


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
        self._is_over = self._has_counted = False

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
        values = (*args, *kwargs.values()) if kwargs else args
        given = self._given(values)  # before it runs: it may write to them
        counts = _counts(values) if self._has_counted else []
        if not given:
            return self._counted(func, args, kwargs, counts[0][0]) if counts else func(*args, **kwargs)
        flags = [(source, tensor.requires_grad) for source, tensor in given]
        out = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        made = _tensors(args[:1] if name == "__setitem__" or out is None else out)
        if torch.is_grad_enabled() and name not in DETACHES and any(has_gradient for _, has_gradient in flags):
            self._mark([each for each in made if not each.is_floating_point()], name, sys._getframe(1))
        made = [each for each in made if each.is_floating_point() and id(each) not in self._numbers]
        if made:
            node = Node(self._context.site, name, torch.is_grad_enabled(), flags)
            if name in ADDS and 0 < sum(has_gradient for _, has_gradient in flags) < len(flags):
                node.constants = [(source, tensor.detach()) for source, tensor in given if not tensor.requires_grad]
            if name in ADDS:
                node.counts = [(counted, tensor.detach()) for counted, tensor in counts]
            if func is torch.autograd.grad:
                node.gives_gradients, node.line = True, self._context.line(sys._getframe(1))
            for tensor in made:
                setattr(tensor, _NODE, node)
        return out

    def _mark(self, made: Sequence[Tensor], name: str, frame: FrameType) -> None:
        """These are indices or truth values of what has a gradient."""
        if made:
            self._has_counted, counted = True, Counted(self._context.site, name, self._context.line(frame))
            for tensor in made:
                setattr(tensor, _COUNTED, counted)

    def _counted(self, func: Any, args: Any, kwargs: Any, counted: Counted) -> Any:
        """What is made of such numbers alone is one too; not what the program says is a constant."""
        out = func(*args, **kwargs)
        if torch.is_grad_enabled() and getattr(func, "__name__", "") not in DETACHES:
            for tensor in _tensors(out):
                if id(tensor) not in self._numbers and not tensor.requires_grad:
                    setattr(tensor, _COUNTED, counted)
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


def _counts(values: Iterable[Any]) -> list[tuple[Counted, Tensor]]:
    held = (t for value in values if isinstance(value, (Tensor, list, tuple)) for t in _tensors(value))
    return [(counted, t) for t in held if (counted := getattr(t, _COUNTED, None)) is not None]


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
    return paths_back([source for copy in copies for source, has_gradient in copy.given if has_gradient])


class GraphShape(contextlib.nullcontext[None]):
    """A mode of a replay that only notes the shape of the graph which its backward goes through.

    Attributes:
        shape: equal for equal graphs, in this process; None until the forward is over.
    """

    def __init__(self) -> None:
        super().__init__()
        self.shape: int | None = None

    def restart(self) -> None:
        """It is done again from the beginning."""
        self.shape = None

    def ends_in(self, roots: Iterable[torch.Tensor]) -> None:
        """Forward is over, and backward starts from these."""
        self.shape = shape_of(roots)


def shape_of(roots: Iterable[torch.Tensor]) -> int:
    """Return a number for the operations behind these, and for which of them uses the result of which."""
    nodes: list[Any] = [root.grad_fn for root in roots if root.grad_fn is not None]
    numbers: dict[Any, int] = {node: number for number, node in enumerate(nodes)}
    found: list[Any] = []
    for node in nodes:  # which grows
        found.append(type(node))
        for behind, _ in node.next_functions:
            number = numbers.get(behind, -1) if behind is not None else None  # None: it needs no gradient
            if number == -1:
                number = numbers[behind] = len(nodes)
                nodes.append(behind)
            found.append(number)
    return hash(tuple(found))
