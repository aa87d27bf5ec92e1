"""A small tensor that is on the host already, in a few NumPy calls: the number that `digest` gives, and its moments."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hypocenter.batch_numbers import ROW, WORD, digest, moments
from hypocenter.tap.host_memory import bytes_of, is_there

_HOSTS = torch.device("cpu")
_IN_NUMPY: dict[torch.dtype, type[np.generic]] = {
    torch.bool: np.bool_, torch.uint8: np.uint8, torch.int8: np.int8, torch.int16: np.int16, torch.int32: np.int32,
    torch.int64: np.int64, torch.float32: np.float32, torch.float64: np.float64,
}  # fmt: skip


def host_digest(tensor: Tensor) -> int | None:
    """The digest, or None for a tensor that is elsewhere, larger than 256 KiB, or of another kind."""
    raw = _bytes(tensor)
    return None if raw is None else digest(raw)


def host_moments(tensor: Tensor) -> tuple[float, float, float, float] | None:
    """Smallest and largest value, mean, standard deviation; None as for `host_digest`. -inf counts as 0."""
    raw = _bytes(tensor)
    if raw is None:
        return None
    return moments(raw.view(_IN_NUMPY[tensor.dtype]))


def _bytes(tensor: Tensor) -> np.ndarray[tuple[int], np.dtype[np.uint8]] | None:
    n_bytes = tensor.numel() * tensor.element_size() if type(tensor) is Tensor else 0
    if not 0 < n_bytes <= ROW * WORD or tensor.device != _HOSTS or tensor.dtype not in _IN_NUMPY:
        return None
    if not tensor.is_contiguous() or tensor.is_neg() or not is_there(tensor):
        return None
    return bytes_of(tensor)
