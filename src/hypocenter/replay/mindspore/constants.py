"""Which values are constants of the program, which factors are zero, and arguments kept for another execution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mindspore as ms  # pyright: ignore[reportMissingImports]
import numpy as np
from numpy.typing import NDArray

from hypocenter.optrace import Edge
from hypocenter.replay.mindspore.host import values


def other_factor_is_zero(read: list[Any], edges: tuple[Edge, ...], outputs: Sequence[NDArray[Any] | None]) -> bool:
    """Whether a product is NaN only where the factor that was finite is exactly 0."""
    if len(read) != 2 or len(outputs) != 1 or outputs[0] is None or bool(edges[0].real) == bool(edges[1].real):
        return False
    other = values(read[1] if edges[0].real else read[0])
    return bool((np.broadcast_to(other, outputs[0].shape)[np.isnan(outputs[0])] == 0).all())


def is_computed(tensor: Any) -> bool:
    """Whether an operator made it out of parameters; False for constants of the program."""
    return getattr(tensor, "_is_leaf", True) is False


def copied(tensor: Any) -> Any:
    """A tensor of its own with the same values, off the graph of gradients."""
    return ms.Tensor(values(tensor).copy(), tensor.dtype)


def detached(value: Any, before: dict[int, Any]) -> Any:
    """The arguments as they were before the op ran, off the graph of gradients."""
    if isinstance(value, ms.Tensor):
        kept = before.get(id(value))
        return kept if kept is not None else copied(value)
    if isinstance(value, (list, tuple)):
        return type(value)(detached(item, before) for item in value)
    return value
