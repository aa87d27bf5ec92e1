"""By what a loss is multiplied between its value and the tensor that `backward` starts from, read off its graph."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

MAX_NODES = 256  # of the graph that are looked at: a loss of many terms, summed
_SAME = frozenset({
    "AddBackward0", "SubBackward0", "SumBackward0", "SumBackward1", "MeanBackward0", "MeanBackward1",
    "ToCopyBackward0", "CloneBackward0", "AliasBackward0", "ViewBackward0", "UnsafeViewBackward0",
    "ReshapeAliasBackward0", "SqueezeBackward0", "SqueezeBackward1", "UnsqueezeBackward0", "SelectBackward0",
    "StackBackward0", "CatBackward0", "ExpandBackward0", "NanToNumBackward0",
})  # fmt: skip
"""Operations after which a factor put on a loss is still in it. Means and sums over elements do not change it."""


def multiplier(root: torch.Tensor) -> float | None:
    """Return the largest product of numbers that the loss is multiplied by on a way into `root`; 1.0 for none.

    None when it cannot be told: a seed or a hook, an operation of the user's own making or a compiled one on the way,
    or a graph that is too large. Reads values that autograd has saved, so it must be called before `backward`; where
    these are on a device that costs a transfer.
    """
    node = root.grad_fn
    if node is None or root._backward_hooks or root.numel() != 1:
        return None
    best = 0.0
    ways: list[tuple[Any, float]] = [(node, 1.0)]
    for _ in range(MAX_NODES):
        if not ways:
            return best or None
        node, factor = ways.pop()
        name = type(node).__name__
        if isinstance(node, torch.autograd.function.BackwardCFunction) or "Compiled" in name:
            if _is_single(node):
                return None
            best = max(best, factor)  # values by token or sample: the loss itself
            continue
        if name in ("MulBackward0", "DivBackward0"):
            value = _saved_number(node)
            if value:
                factor *= 1.0 / value if name.startswith("Div") else value
        elif name not in _SAME:
            best = max(best, factor)
            continue
        ways += [(after, abs(factor)) for after, _ in node.next_functions if after is not None]
    return None


def reached(roots: Sequence[torch.Tensor], *, by_all: bool) -> set[Any]:
    """Return the nodes that a backward from these tensors comes to.

    Args:
        by_all: also those to which it comes only through what is multiplied by the number 0.
    """
    waiting = [node for root in roots if (node := root.grad_fn) is not None]
    found = set[Any](waiting)
    while waiting:
        node = waiting.pop()
        if by_all or type(node).__name__ != "MulBackward0" or _saved_number(node) != 0.0:
            new = {after for after, _ in node.next_functions if after is not None} - found
            found |= new
            waiting += new
    return found


def _is_single(node: Any) -> bool:
    """Return whether what a node returned was one number, as far as can be known."""
    try:
        return all(math.prod(entry.shape) == 1 for entry in node._input_metadata)
    except (AttributeError, RuntimeError):
        return True


def _saved_number(node: Any) -> float | None:
    """Return the one number that a product was formed with; None for two larger tensors, or learned ones."""
    for attribute in ("_saved_other", "_saved_self"):
        saved = getattr(node, attribute, None)
        if isinstance(saved, torch.Tensor) and saved.numel() == 1 and not saved.requires_grad:
            return float(saved)
        if isinstance(saved, (int, float)):
            return float(saved)
    return None
