"""Values of MindSpore tensors on the host, and which kinds of non-finite values they hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mindspore as ms  # pyright: ignore[reportMissingImports]
from numpy.typing import NDArray

from hypocenter.replay.host_values import Held, bits_of
from hypocenter.summary.reducers.mindspore_values import dtype_name, has_values, on_host

FLOATS = (ms.float16, ms.bfloat16, ms.float32, ms.float64)


def is_floating(tensor: Any) -> bool:
    """Return whether it can hold a value that is not finite."""
    return tensor.dtype in FLOATS or dtype_name(tensor).startswith(("complex", "float8"))


def values(tensor: Any) -> NDArray[Any]:
    """Return the values as an array; float32 for bfloat16."""
    return on_host(tensor)


def nonfinite_bits(tensor: Any) -> int:
    """Return the bits for the kinds of non-finite values that a tensor holds."""
    return 0 if not is_floating(tensor) or not has_values(tensor) else bits_of(values(tensor))


def is_finite(tensor: Any) -> bool:
    """Return whether every element is finite."""
    return nonfinite_bits(tensor) == 0


def flat(*trees: Any) -> Iterator[Any]:
    """Yield the tensors in nested tuples, lists and dicts, in order."""
    for tree in trees:
        if isinstance(tree, ms.Tensor):
            yield tree
        elif isinstance(tree, (tuple, list)):
            yield from flat(*tree)
        elif isinstance(tree, dict):
            yield from flat(*tree.values())


def address(tensor: Any) -> int:
    """Return the address of the memory that holds it, the same for all views; 0 where there is none."""
    try:
        return int(tensor.untyped_storage().data_ptr())
    except Exception:  # a compressed or empty tensor, another version of MindSpore
        return 0


def held(tensor: Any) -> Held:
    """Return a copy of its values."""
    return Held(array=values(tensor).copy(), dtype=dtype_name(tensor))
