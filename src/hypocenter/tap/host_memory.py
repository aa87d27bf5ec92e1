"""The bytes of a tensor on the host as NumPy sees them, without a trace on the tensor.

`Tensor.numpy()` makes the storage one that cannot be resized any more, and FSDP resizes the storages of parameters.
"""

from __future__ import annotations

import ctypes
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

Bytes: TypeAlias = np.ndarray[tuple[int], np.dtype[np.uint8]]


def bytes_of(tensor: Tensor) -> Bytes:
    """Return the bytes of a contiguous, dense, non-empty tensor on the host. Valid as long as the tensor is."""
    n_bytes = tensor.numel() * tensor.element_size()
    memory: Any = (ctypes.c_ubyte * n_bytes).from_address(tensor.data_ptr())
    return np.frombuffer(memory, dtype=np.uint8)


def is_there(tensor: Tensor) -> bool:
    """Return whether the storage holds the tensor's elements: FSDP takes a parameter's memory away between uses."""
    if not tensor.numel():
        return True
    if tensor.is_contiguous():
        last = tensor.numel() - 1
    else:
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (tensor.storage_offset() + last + 1) * tensor.element_size() <= tensor.untyped_storage().nbytes()
