"""Summaries of tensors on an accelerator: kernels now, one transfer of small results for all of them later.

Nothing refers to the user's tensor after `add`, so its memory is freed and reused when the program says, and a later
in-place change is not seen. All results are bytes of one concatenation, so that a step costs one transfer.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from hypocenter.formats import FORMATS
from hypocenter.nouns import Summary
from hypocenter.summary.exponents import BINARY32, tally
from hypocenter.summary.reducers import torch_triton
from hypocenter.summary.reducers.sampling import SIZE, Moments, assembled
from hypocenter.summary.reducers.torch_exact import exact, smallest_normal_exponent
from hypocenter.summary.reducers.torch_samples import spread

_FLOAT32 = frozenset((torch.float32, torch.bfloat16, torch.float16))
_KEPT = 1 << 16  # elements: integers and float64 up to this are copied and summarised exactly after the transfer
CHUNK = 1 << 25  # elements that are copied at a time: 128 MiB of float32
_ROW_BYTES = 28  # three int32 counts, float32 min, max, scaled sum and norm
# The smallest and the largest power of two that float32 holds as a normal number.
_LEAST_UNIT, _MOST_UNIT = FORMATS["float32"].smallest_normal, 2.0 ** FORMATS["float32"].largest_exponent
_INF = math.inf


@dataclass(slots=True)
class _Promise:
    ticket: int
    n: int
    dtype: torch.dtype
    payload: Tensor  # uint8, on the device
    read: Callable[[Tensor, _Promise], Summary]  # the payload on the host


@dataclass(slots=True)
class Deferred:
    """Results that one device still has to deliver."""

    _promises: list[_Promise] = field(default_factory=list)

    def add(self, ticket: int, row: Tensor) -> None:
        """Launch the kernels for non-empty values along one axis.

        Without Triton integers and float64 of more than 65,536 elements go through float32: their extremes are rounded.
        """
        is_kept = _is_wide(row.dtype) and row.numel() <= _KEPT
        if self.add_fused(ticket, row, is_full=is_kept):
            return
        payload, read = (row.clone().view(torch.uint8), _read_copy) if is_kept else (_reduced(row), _read)
        self._promises.append(_Promise(ticket, row.numel(), row.dtype, payload, read))

    def add_fused(self, ticket: int, row: Tensor, *, is_full: bool) -> bool:
        """Do the same with Triton, exactly in every format; return False if it cannot. `is_full`: all in the
        histogram."""
        if not torch_triton.serves(row.device, row.dtype):
            return False
        result = torch_triton.reduced(row, is_full=is_full)
        if result is None:
            return False
        read = _read_fused_whole if is_full else _read_fused
        self._promises.append(_Promise(ticket, row.numel(), row.dtype, result.view(torch.uint8), read))
        return True

    def summaries(self) -> Iterator[tuple[int, Summary]]:
        """Wait for the device and yield (ticket, Summary) of all that was added."""
        if not self._promises:
            return
        data = torch.cat([promise.payload for promise in self._promises]).cpu()
        start = 0
        for promise in self._promises:
            part = data[start : start + promise.payload.numel()].clone()  # aligned for a wider view
            start += promise.payload.numel()
            yield promise.ticket, promise.read(part, promise)


def _is_wide(dtype: torch.dtype) -> bool:
    """Return whether float32 does not hold all numbers of this format."""
    return dtype not in _FLOAT32 and dtype.itemsize > 1


def _reduced(row: Tensor) -> Tensor:
    """Return counts, extremes, scaled sums and the sample of values as bytes; no step waits for the device.

    Dividing by the power of two below the largest magnitude changes no bit of a value that matters and keeps squares
    inside float32: 1e-30 squared would vanish, 1e30 squared overflow. Copies are made of CHUNK elements at a time.
    """
    chunks = row.split(CHUNK)
    looked = [_extremes(chunk) for chunk in chunks]
    low, high = torch.stack([low for low, _, _ in looked]).amin(), torch.stack([high for _, high, _ in looked]).amax()
    absmax = torch.maximum(-low, high)
    unit = (absmax.view(torch.int32) & BINARY32.infinity).view(torch.float32).clamp(_LEAST_UNIT, _MOST_UNIT)
    sums, norms = zip(*(_scaled_sums(chunk, unit) for chunk in chunks), strict=True)
    norm = torch.linalg.vector_norm(torch.stack(norms))
    floats = torch.stack([low, high, torch.stack(sums).sum(), norm])
    counts = functools.reduce(torch.add, [counted for _, _, counted in looked])
    sample = spread(row).reshape(-1).to(torch.float32)
    return torch.cat([counts.view(torch.uint8), floats.view(torch.uint8), sample.contiguous().view(torch.uint8)])


def _extremes(chunk: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x = chunk if chunk.dtype in _FLOAT32 else chunk.to(torch.float32)
    low, high = x.nan_to_num(_INF, _INF, _INF).amin(), x.nan_to_num(-_INF, -_INF, -_INF).amax()
    counts = torch.stack([x.isnan().sum(dtype=torch.int32), (x == _INF).sum(dtype=torch.int32),
                          (x == -_INF).sum(dtype=torch.int32)])  # fmt: skip
    return low.to(torch.float32), high.to(torch.float32), counts


def _scaled_sums(chunk: Tensor, unit: Tensor) -> tuple[Tensor, Tensor]:
    scaled = chunk.to(torch.float32).nan_to_num(0.0, 0.0, 0.0) / unit
    return scaled.sum(dtype=torch.float32), torch.linalg.vector_norm(scaled, dtype=torch.float32)


def _read_copy(part: Tensor, promise: _Promise) -> Summary:
    return exact(part.view(promise.dtype))


def _read_fused(part: Tensor, promise: _Promise) -> Summary:
    return torch_triton.read(part.numpy().view(np.int64), promise.n, promise.dtype, is_full=False)


def _read_fused_whole(part: Tensor, promise: _Promise) -> Summary:
    return torch_triton.read(part.numpy().view(np.int64), promise.n, promise.dtype, is_full=True)


def _read(values: Tensor, promise: _Promise) -> Summary:
    part = values.numpy()
    n_nan, n_posinf, n_neginf = part[:12].view(np.int32).tolist()
    low, high, total, norm = part[12:_ROW_BYTES].view(np.float32).tolist()
    size = min(promise.n, SIZE)
    counted = tally(part[_ROW_BYTES:].view(np.float32), [size])
    largest = max(-low, high) if low <= high else 0.0
    exponent = math.frexp(largest)[1] - 1
    unit = min(max(math.ldexp(1.0, exponent), _LEAST_UNIT), _MOST_UNIT)
    moments = Moments(low, high, total * unit, norm * norm * unit * unit, n_nan, n_posinf, n_neginf)
    return assembled(promise.n, size, smallest_normal_exponent(promise.dtype), moments, counted)
