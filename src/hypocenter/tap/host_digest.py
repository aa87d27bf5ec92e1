"""A small tensor that is on the host already, in a few NumPy calls: the number that `digest` gives, and its moments."""

from __future__ import annotations

import functools
import math
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from hypocenter.tap.digest import LENGTH, ROW, _keys
from hypocenter.tap.host_memory import bytes_of, is_there

_WORD = 8  # bytes
_HOSTS = torch.device("cpu")
_IN_NUMPY: dict[torch.dtype, type[np.generic]] = {
    torch.bool: np.bool_, torch.uint8: np.uint8, torch.int8: np.int8, torch.int16: np.int16, torch.int32: np.int32,
    torch.int64: np.int64, torch.float32: np.float32, torch.float64: np.float64,
}  # fmt: skip
Words: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]


def host_digest(tensor: Tensor) -> int | None:
    """The digest, or None for a tensor that is elsewhere, larger than 256 KiB, or of another kind."""
    raw = _bytes(tensor)
    if raw is None:
        return None
    words = _words(raw)
    low, high = _host_keys()
    n = len(words)
    total = int(np.dot(words, low[:n])) + int(np.dot(words >> 32, high[:n])) + LENGTH * len(raw)
    total &= (1 << 64) - 1
    return total - (1 << 64) if total >> 63 else total


def host_moments(tensor: Tensor) -> tuple[float, float, float, float] | None:
    """Smallest and largest value, mean, standard deviation; None as for `host_digest`. -inf counts as 0."""
    raw = _bytes(tensor)
    if raw is None:
        return None
    values = raw.view(_IN_NUMPY[tensor.dtype])
    with np.errstate(all="ignore"):  # of what is not finite nothing is said: that is the program's to see
        low, high = float(values.min()), float(values.max())
        if low == -math.inf:  # an additive mask
            values = np.where(values == low, np.zeros(1, values.dtype), values)
            low, high = float(values.min()), float(values.max())
        mean = float(values.mean(dtype=np.float64))
        away: np.ndarray[tuple[int], np.dtype[np.floating[Any]]] = np.subtract(values, mean)
        return low, high, mean, math.sqrt(float(np.dot(away, away)) / len(values))


def _bytes(tensor: Tensor) -> np.ndarray[tuple[int], np.dtype[np.uint8]] | None:
    n_bytes = tensor.numel() * tensor.element_size() if type(tensor) is Tensor else 0
    if not 0 < n_bytes <= ROW * _WORD or tensor.device != _HOSTS or tensor.dtype not in _IN_NUMPY:
        return None
    if not tensor.is_contiguous() or tensor.is_neg() or not is_there(tensor):
        return None
    return bytes_of(tensor)


def _words(raw: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> Words:
    if len(raw) % _WORD == 0:
        return raw.view(np.int64)
    filled = np.zeros(-(-len(raw) // _WORD), dtype=np.int64)
    filled.view(np.uint8)[: len(raw)] = raw
    return filled


@functools.cache
def _host_keys() -> tuple[Words, Words]:
    low, high = _keys(_HOSTS)
    return low.numpy(), high.numpy()
