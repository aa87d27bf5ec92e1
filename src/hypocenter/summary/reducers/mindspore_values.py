"""What numbers a MindSpore tensor holds, and where: as a NumPy array without an operator where it lies on the host."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from mindspore import Tensor, context  # pyright: ignore[reportMissingImports]
from numpy.typing import NDArray


def is_tensor(value: object) -> bool:
    """Return whether it is a dense MindSpore tensor (a Parameter is one)."""
    return isinstance(value, Tensor)


def dtype_name(tensor: Any) -> str:
    """Return the name of the format in torch's words: float32, bfloat16, int64, bool, ..."""
    return str(tensor.dtype).lower()


def n_elements(tensor: Any) -> int:
    """Return the number of elements, 0 where even that is unknown."""
    try:
        return int(tensor.size)
    except Exception:  # a tensor of dynamic shape, or whatever else it is
        return 0


def has_values(tensor: Any) -> bool:
    """Return whether there is memory behind it: not for one that waits for its initializer, nor for meta tensors."""
    return not (getattr(tensor, "has_init", False) or getattr(tensor, "is_meta", False))


def is_on_host(tensor: Any) -> bool:
    """Return whether reading it waits for no accelerator."""
    return _target() == "CPU" or str(getattr(tensor, "device", "")).upper().startswith("CPU")


def on_host(tensor: Any) -> NDArray[Any]:
    """Return the values, C-contiguous; float32 for bfloat16. A view of memory that the program may overwrite."""
    array = tensor.asnumpy()
    return from_bfloat16(array) if array.dtype.name == "bfloat16" else array


def from_bfloat16(array: NDArray[Any]) -> NDArray[np.float32]:
    """Return the same numbers as float32, from bit patterns: bfloat16 is the upper half of float32."""
    return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


@functools.lru_cache(maxsize=1)
def _target() -> str:
    return str(context.get_context("device_target")).upper()
