"""Summaries of tensors on an accelerator: operators now, one transfer of small results for all of them later.

Only float32 numbers are transferred, so that they make one tensor: a count is two of them, of 16 bits each. Integers
and float64 are copied up to a size, and wait for a transfer of their own format.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mindspore import Tensor, _no_grad, ops  # pyright: ignore[reportMissingImports]
from mindspore import dtype as mstype  # pyright: ignore[reportMissingImports]
from numpy.typing import NDArray

from hypocenter.formats import FORMATS
from hypocenter.nouns import Summary
from hypocenter.summary.exponents import tally
from hypocenter.summary.reducers.mindspore_values import dtype_name, on_host
from hypocenter.summary.reducers.numpy import smallest_normal_exponent, summarize
from hypocenter.summary.reducers.sampling import RUN_LENGTH, RUNS, SIZE, Moments, assembled, run_stride

_FLOAT32 = ("float32", "bfloat16", "float16")
_KEPT = 1 << 16  # elements: integers and float64 up to this are copied and summarised exactly after the transfer
_FIELDS = 10  # three counts of two numbers each, min, max, scaled sum and sum of squares
_LEAST_UNIT = FORMATS["float32"].smallest_normal
_ROW = 1 << 12  # elements that are summed before partial sums are: short float32 sums are good ones
_HALF_NORMAL = -14  # binary exponent of the smallest normal float16
_SINGLE_NORMAL = -126  # and of float32 and bfloat16


@dataclass(slots=True)
class _Promise:
    ticket: int
    n: int
    dtype: str
    payload: Any  # a tensor on the device
    is_copy: bool
    sketch: Any | None  # a tensor on the device


@dataclass(slots=True)
class Deferred:
    """Results that the device still has to deliver."""

    _promises: list[_Promise] = field(default_factory=list[_Promise])

    def add(self, ticket: int, tensor: Any, sketch: Any | None = None) -> None:
        """Launch the operators for a tensor that is not empty.

        Integers and float64 of more than 65,536 elements go through float32: their extremes are rounded to it.
        """
        dtype, n = dtype_name(tensor), int(tensor.size)
        with _no_grad():
            if dtype not in _FLOAT32 and n <= _KEPT:
                payload, is_copy = tensor.copy().reshape(-1), True
            else:
                values = ops.cat((tensor.real(), tensor.imag())) if dtype.startswith("complex") else tensor
                n = int(values.size)
                payload, is_copy = _reduced(values.reshape(-1).astype(mstype.float32)), False
        self._promises.append(_Promise(ticket, n, dtype, payload, is_copy, sketch))

    def summaries(self) -> Iterator[tuple[int, Summary, tuple[float, ...] | None]]:
        """Wait for the device and yield (ticket, Summary, sketch) of all that was added."""
        promises, self._promises = self._promises, []
        wanted = [p.payload for p in promises if not p.is_copy] + [p.sketch for p in promises if p.sketch is not None]
        with _no_grad():
            rows = _fetched(wanted)
            copies = {
                dtype: _fetched([p.payload for p in promises if p.is_copy and p.dtype == dtype])
                for dtype in sorted({p.dtype for p in promises if p.is_copy})
            }
        with np.errstate(all="ignore"):
            found = [(p, summarize(next(copies[p.dtype])) if p.is_copy else _read(next(rows), p)) for p in promises]
        for promise, summary in found:
            yield promise.ticket, summary, None if promise.sketch is None else tuple(next(rows).tolist())


def _fetched(tensors: list[Any]) -> Iterator[NDArray[Any]]:
    """Yield the rows of numbers, with one transfer for all of one format."""
    if not tensors:
        return iter(())
    data = on_host(ops.cat(tuple(tensors)) if len(tensors) > 1 else tensors[0])
    return iter(np.split(data, np.cumsum([int(tensor.size) for tensor in tensors])[:-1]))


def _reduced(x: Any) -> Any:
    """Return counts, extremes, scaled sums and the sample of a row of float32 values; no step waits for the device.

    Dividing by the largest magnitude keeps squares inside float32: 1e-30 squared would vanish, 1e30 squared overflow.
    """
    is_finite = ops.isfinite(x)
    positive, negative = ops.equal(x, math.inf), ops.equal(x, -math.inf)
    n_bad = [_halves(which) for which in (ops.isnan(x), positive, negative)]
    low = ops.select(is_finite, x, ops.full_like(x, math.inf)).min()
    high = ops.select(is_finite, x, ops.full_like(x, -math.inf)).max()
    unit = ops.maximum(ops.maximum(-low, high), Tensor(_LEAST_UNIT, mstype.float32))
    scaled = ops.select(is_finite, x, ops.zeros_like(x)) / unit
    numbers = [*(half for halves in n_bad for half in halves), low, high, _sum(scaled), _sum(scaled * scaled)]
    sample = x if x.size <= SIZE else x[Tensor(_places(int(x.size)))]
    return ops.cat((ops.stack([number.reshape(()) for number in numbers]), sample))


def _halves(which: Any) -> tuple[Any, Any]:
    count = which.astype(mstype.int32).sum()
    return (count // 65536).astype(mstype.float32), (count % 65536).astype(mstype.float32)


def _sum(x: Any) -> Any:
    n = int(x.size) // _ROW * _ROW
    if not n:
        return x.sum()
    long = x[:n].reshape(-1, _ROW).sum(1).sum()
    return long if n == x.size else long + x[n:].sum()


@functools.lru_cache(maxsize=256)
def _places(n: int) -> NDArray[np.int32]:
    return (np.arange(RUNS)[:, None] * run_stride(n) + np.arange(RUN_LENGTH)).reshape(-1).astype(np.int32)


def _read(row: NDArray[np.float32], promise: _Promise) -> Summary:
    counts, (low, high, total, squares) = row[:6].tolist(), row[6:_FIELDS].tolist()
    n_nan, n_posinf, n_neginf = (int(counts[2 * i] * 65536 + counts[2 * i + 1]) for i in range(3))
    size = min(promise.n, SIZE)
    counted = tally(np.ascontiguousarray(row[_FIELDS:]), [size])
    unit = max(-low, high, _LEAST_UNIT) if low <= high else 0.0
    moments = Moments(low, high, total * unit, squares * unit * unit, n_nan, n_posinf, n_neginf)
    return assembled(promise.n, size, _smallest_normal(promise.dtype), moments, counted)


def _smallest_normal(dtype: str) -> int:
    if dtype in _FLOAT32:
        return _HALF_NORMAL if dtype == "float16" else _SINGLE_NORMAL
    return smallest_normal_exponent(np.dtype({"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)))
