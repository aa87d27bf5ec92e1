"""What dispatch modes of ours have in common, and what can be asked of whatever is dispatched to them.

Higher-order operators (FlexAttention, `cond`) are dispatched too: they take functions, and have no schema and no tags.
To a mode that does not say that it knows them torch raises an error. What they do inside is not shown to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Mode(TorchDispatchMode):
    """A dispatch mode that higher-order operators come to as well."""

    supports_higher_order_operators = True


def name_of(func: Any) -> str:
    """Name an operator: `aten.mul.Tensor`, `higher_order.flex_attention`."""
    name = str(func)
    return name if "." in name else f"{func.namespace}.{name}"


def is_view(func: Any) -> bool:
    """Return whether an operator only gives another view of its argument."""
    return bool(getattr(func, "is_view", False))


def is_random(func: Any) -> bool:
    """Return whether an operator draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())


def is_mutable(func: Any) -> bool:
    """Return whether an operator's schema says that it writes to an argument."""
    return bool(getattr(getattr(func, "_schema", None), "is_mutable", False))


def declared(func: Any) -> Sequence[Any]:
    """Return an operator's arguments as its schema has them; none without a schema."""
    return getattr(getattr(func, "_schema", None), "arguments", ())
