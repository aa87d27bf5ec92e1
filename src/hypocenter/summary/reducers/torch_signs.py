"""Products with signs in full precision, whatever the user has set for products, and in blocks that suit the device.

TF32 keeps 11 bits of a factor, bfloat16 8. The settings are global, and other threads multiply too: they are left as
they are. A float32 number is the sum of three bfloat16 ones without a rest, and a sign times one of these is exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from hypocenter.summary.sketch import WIDTH, MatrixPlace

_ON_HOST = 1 << 18  # elements converted to float32 at a time: 1 MiB, which stays in the cache
_ON_DEVICE = 32 * _ON_HOST  # 32 MiB: there a kernel's launch costs more than its work on less; four copies at most
_FULL = ("none", "ieee")


def block_elements(device: torch.device) -> int:
    """Return how many elements are converted at a time on this device."""
    return _ON_HOST if device.type == "cpu" else _ON_DEVICE


def blocks_of(values: Tensor, starts: MatrixPlace) -> Iterator[tuple[int, Tensor]]:
    """Yield the matrix that `starts` describes block by block: the first row of each, and its rows.

    A block is a view where that is possible; else only it is copied, whatever the size of the whole. No more rows than
    a vector's block has, for their signs take memory too.
    """
    n = block_elements(values.device)
    if values.ndim < 2:
        yield from _blocks_of_vector(values.reshape(-1), starts, max(1, n // WIDTH))
        return
    n_columns = values.shape[-1]
    step = max(1, min(n // max(1, n_columns), n // WIDTH))
    n_rows_each = values[:1].numel() // max(1, n_columns)
    whole = values.ndim == 2 or values.is_contiguous() or not n_rows_each
    first = 0
    for part in (values,) if whole else values.split(max(1, step // n_rows_each)):
        matrix = part.reshape(part.numel() // n_columns if n_columns else 0, n_columns)
        for row in range(0, matrix.shape[0], step):
            yield first + row, matrix[row : row + step]
        first += matrix.shape[0]


def _blocks_of_vector(flat: Tensor, starts: MatrixPlace, step: int) -> Iterator[tuple[int, Tensor]]:
    n, (n_rows,) = flat.numel(), starts.size
    for first in range(0, n_rows, step):
        last = min(first + step, n_rows)
        begin, end = first * WIDTH - starts.pad, last * WIDTH - starts.pad
        block = flat[max(0, begin) : min(end, n)]
        if begin < 0 or end > n:
            padded = flat.new_zeros((last - first) * WIDTH)
            padded[max(0, -begin) : max(0, -begin) + block.numel()] = block
            block = padded
        yield first, block.reshape(last - first, WIDTH)


def times_signs(values: Tensor, signs: Tensor) -> Tensor:
    """Return `values @ signs`; signs are 1 and -1 in the format of the values."""
    if values.dtype is not torch.float32 or not cuts_factors(values.device.type):
        return values @ signs
    high = values.to(torch.bfloat16).to(torch.float32)
    rest, total = values - high, high @ signs
    high = rest.to(torch.bfloat16).to(torch.float32)
    rest, total = rest - high, total + high @ signs
    return total + rest @ signs


def cuts_factors(device_type: str) -> bool:
    """Return whether products of float32 may be made of shorter factors (as TF32) on such a device."""
    of_device: Any = getattr(torch, device_type, None)
    if bool(getattr(getattr(of_device, "matmul", None), "allow_hf32", False)):  # torch_npu's
        return True
    get: Any = getattr(torch._C, "_get_fp32_precision_getter", None)  # torch 2.9
    if get is not None:
        backend = "mkldnn" if device_type == "cpu" else "cuda"
        return any(get(*of) not in _FULL for of in (("generic", "all"), (backend, "all"), (backend, "matmul")))
    return torch.get_float32_matmul_precision() != "highest"
