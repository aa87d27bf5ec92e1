"""A small tensor that is on the host already, in a few NumPy calls: the number that `digest` gives, and its values."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hypocenter.batch_numbers import ROW, WORD, digest
from hypocenter.tap.host_memory import bytes_of, is_there

_HOSTS = torch.device("cpu")
_IN_NUMPY: dict[torch.dtype, type[np.generic]] = {
    torch.bool: np.bool_, torch.uint8: np.uint8, torch.int8: np.int8, torch.int16: np.int16, torch.int32: np.int32,
    torch.int64: np.int64, torch.float32: np.float32, torch.float64: np.float64,
}  # fmt: skip


MOST_BYTES = ROW * WORD  # of what one digest is taken of in one piece


def host_digest(tensor: Tensor) -> int | None:
    """Return the digest; None for a tensor that is elsewhere, larger than 256 KiB, or of another kind."""
    values = host_values(tensor)
    return digest(values.view(np.uint8)) if values is not None and values.nbytes <= MOST_BYTES else None


def host_values(tensor: Tensor) -> NDArray[Any] | None:
    """Return all values in a row, as they lie on the host, or None. They are valid as long as the tensor is."""
    if type(tensor) is not Tensor or (kind := _IN_NUMPY.get(tensor.dtype)) is None or tensor.device != _HOSTS:
        return None
    if tensor.layout is not torch.strided or not tensor.numel() or not tensor.is_contiguous():
        return None
    if tensor.is_neg() or not is_there(tensor):
        return None
    return bytes_of(tensor).view(kind)
