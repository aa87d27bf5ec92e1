"""The digest of a small tensor that is on the host already, in a few NumPy calls; the number that `digest` gives."""

from __future__ import annotations

import functools
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from hypocenter.tap.digest import LENGTH, ROW, _keys
from hypocenter.tap.host_memory import bytes_of, is_there

_WORD = 8  # bytes
_HOSTS = torch.device("cpu")
_DTYPES = frozenset({
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64,
})  # fmt: skip
Words: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]


def host_digest(tensor: Tensor) -> int | None:
    """The digest, or None for a tensor that is elsewhere, larger than 256 KiB, or of another kind."""
    n_bytes = tensor.numel() * tensor.element_size() if type(tensor) is Tensor else 0
    if not 0 < n_bytes <= ROW * _WORD or tensor.device != _HOSTS or tensor.dtype not in _DTYPES:
        return None
    if not tensor.is_contiguous() or tensor.is_neg() or not is_there(tensor):
        return None
    words = _words(bytes_of(tensor))
    low, high = _host_keys()
    n = len(words)
    total = int(np.dot(words, low[:n])) + int(np.dot(words >> 32, high[:n])) + LENGTH * n_bytes
    total &= (1 << 64) - 1
    return total - (1 << 64) if total >> 63 else total


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
