"""What MindSpore's PyNative autograd tells of a tensor and of itself: the few names here are not in its documentation.

A MindSpore that lacks one of them tells nothing: values are read, their gradients are not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mindspore.common.api import _pynative_executor  # pyright: ignore[reportMissingImports]

_DEEPEST = 16  # views of views
_MOST_NODES = 20_000  # of a graph
_engine_id = getattr(_pynative_executor, "get_current_autodiff_engine_id", lambda: -1)


def in_backward() -> bool:
    """Return whether backward runs: a cell that is called now computes again what was not kept."""
    return _engine_id() != -1


def has_gradient(tensor: Any) -> bool:
    """Return whether a gradient of the tensor will be computed."""
    return bool(getattr(tensor, "_requires_grad", False))


def is_leaf(tensor: Any) -> bool:
    """Return whether no operator made the tensor, so that a hook on it outlives the graph."""
    return bool(getattr(tensor, "_is_leaf", True))


def behind(tensor: Any) -> Iterator[int]:
    """Yield numbers of operators, from the one that made a tensor's value back, as long as each had one operand."""
    node = getattr(tensor, "_grad_node", None)
    for _ in range(_DEEPEST):
        if node is None or node.is_leaf():
            return
        yield node._sequence_nr()
        before = [each for each, _ in node.next_functions if each is not None]
        if len(before) != 1:
            return
        node = before[0]


def leaf_of(tensor: Any) -> int | None:
    """Return what autograd knows a leaf by, a parameter for one; None of what no graph has led to."""
    node = getattr(tensor, "_grad_node", None)
    return node._unique_id() if node is not None and node.is_leaf() else None


def leaves(root: Any) -> set[int]:
    """Return what autograd knows those by that the graph of a loss leads to."""
    node: Any = getattr(root, "_grad_node", None)
    waiting, seen, found = [node] if hasattr(node, "next_functions") else [], set[int](), set[int]()
    while waiting and len(seen) < _MOST_NODES:
        node = waiting.pop()
        if node._unique_id() in seen:
            continue
        seen.add(node._unique_id())
        if node.is_leaf():
            found.add(node._unique_id())
        waiting += [each for each, _ in node.next_functions if each is not None]
    return found


def made_by(tensor: Any) -> int:
    """Return the number of the operator that made its value, or last wrote to it; -1 of a leaf.

    Some operators write in place without leaving a trace here (`add_` of a number).
    """
    number = getattr(getattr(tensor, "_grad_node", None), "_sequence_nr", None)
    return number() if number is not None else -1
