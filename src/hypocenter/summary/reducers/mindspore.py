"""MindSpore tensor -> Summary, with the interface of TorchReducer: `add` many, `drain` once a step."""

from __future__ import annotations

import functools
from typing import Any, Literal

import numpy as np
from mindspore import Tensor, _no_grad, ops  # pyright: ignore[reportMissingImports]
from mindspore import dtype as mstype  # pyright: ignore[reportMissingImports]
from numpy.typing import NDArray

from hypocenter.nouns import Summary, replace
from hypocenter.summary.reducers.mindspore_deferred import Deferred
from hypocenter.summary.reducers.mindspore_values import dtype_name, has_values, is_on_host, n_elements, on_host
from hypocenter.summary.reducers.numpy_many import NumpyReducer, sample_of
from hypocenter.summary.reducers.sampling import SMALL
from hypocenter.summary.sketch import (
    COLUMN_SEED,
    LARGEST,
    ROW_SEED,
    WIDTH,
    K,
    MatrixPlace,
    Placement,
    matrix_place,
    row_numbers,
    signs,
)  # fmt: skip

Histogram = Literal["sample", "full"]
_BLOCK = 1 << 20  # elements multiplied at a time: 4 MiB


class MindSporeReducer:
    """Summarise many tensors cheaply. Not thread-safe.

    On the host everything is exact and agrees to the bit with `reducers.numpy` (numpy_many tells of the sample). On an
    accelerator `add` only launches operators, which keep no reference to the tensor, and `drain` makes one transfer
    for all floating-point tensors: counts of non-finite values and extremes are exact, sums are float32 sums, and
    fields of the histogram come from the sample, unless `histogram="full"`, which waits for the device in `add`.
    """

    def __init__(self, histogram: Histogram = "sample", sketch: bool = False, *, defer_cpu: bool = False) -> None:
        self._full, self._sketch = histogram == "full", sketch
        self._defer_cpu = defer_cpu  # treat the CPU as an accelerator: for tests
        self._host = NumpyReducer(histogram, sketch)
        self._reset()

    def _reset(self) -> None:
        self._n = 0
        self._done: dict[int, Summary] = {}
        self._on_host: dict[int, int] = {}  # ticket -> that of the reducer on the host
        self._deferred = Deferred()

    def add(self, tensor: Any, place: Placement | None = None, *, sketch: bool = True) -> int:
        """Take in a tensor as it is now and return its ticket: the index of its Summary in `drain()`.

        Args:
            tensor: a mindspore.Tensor or Parameter; what cannot be read gives `n` only.
            place: what part of a larger tensor it is.
            sketch: False: not this one, although the reducer sketches.
        """
        ticket, self._n = self._n, self._n + 1
        try:
            self._reduce(tensor, ticket, place, sketch)
        except Exception:  # a summary is never worth the user's run
            self._done[ticket] = Summary(n=n_elements(tensor))
        return ticket

    def _reduce(self, tensor: Any, ticket: int, place: Placement | None, sketch: bool) -> None:
        if not has_values(tensor):
            self._done[ticket] = Summary(n=n_elements(tensor))
        elif self._full or (is_on_host(tensor) and not self._defer_cpu):
            self._on_host[ticket] = self._host.add(on_host(tensor), place, sketch=sketch)
        elif not n_elements(tensor):
            self._done[ticket] = Summary(sketch=(0.0,) * K**2 if self._sketch and sketch else None)
        else:
            self._deferred.add(ticket, tensor, sketch_of(tensor, place) if self._sketch and sketch else None)

    def mark(self, tensor: Any) -> bytes | None:
        """Return the bytes of the sample: they change when a tensor is written to. None where reading would wait."""
        if not has_values(tensor) or not is_on_host(tensor) or self._defer_cpu:
            return None
        row = tensor.asnumpy().reshape(-1)
        return (row if row.size <= SMALL else sample_of(row)).tobytes()

    def drain(self) -> list[Summary]:
        """Return the Summary of every ticket in order, and start anew."""
        n, done, on_host_, deferred = self._n, self._done, self._on_host, self._deferred
        self._reset()
        host = self._host.drain()
        done.update({ticket: host[of_host] for ticket, of_host in on_host_.items()})
        for ticket, summary, sketch in deferred.summaries():
            done[ticket] = summary if sketch is None else replace(summary, sketch=sketch)
        return [done.get(ticket, Summary()) for ticket in range(n)]


def summarize(tensor: Any, *, histogram: Histogram = "full", sketch: bool = False) -> Summary:
    """Summarise one tensor now; on an accelerator this waits for it. Never raises, changes or keeps the tensor."""
    reducer = MindSporeReducer(histogram, sketch)
    reducer.add(tensor)
    return reducer.drain()[0]


def sketch_of(tensor: Any, place: Placement | None = None) -> Any:
    """Sketch a tensor, or the shard of one that `place` describes: K * K float32 numbers on the same device."""
    with _no_grad():
        values = tensor
        if dtype_name(tensor).startswith("complex"):
            values = ops.stack((tensor.real(), tensor.imag()), -1)
            place = place and Placement(shape=(*place.shape, 2), offset=(*place.offset, 0))
        starts = matrix_place(tuple(values.shape), place)
        return _product(_as_matrix(values.astype(mstype.float32), starts), starts)


def _as_matrix(values: Any, starts: MatrixPlace) -> Any:
    if values.ndim > 1:
        return values.reshape(int(np.prod(starts.size, dtype=np.int64)), values.shape[-1])
    row = values.reshape(-1)
    after = starts.size[0] * WIDTH - starts.pad - int(row.size)
    parts = [_zeros(starts.pad), row, _zeros(after)]
    return ops.cat(tuple(part for part in parts if part is not None)).reshape(-1, WIDTH)


def _zeros(n: int) -> Any | None:
    return ops.zeros((n,), mstype.float32) if n else None


def _product(matrix: Any, starts: MatrixPlace) -> Any:
    n_rows, n_columns = matrix.shape
    columns = Tensor(_signs(n_columns, starts.column))
    rows = _row_signs(starts)
    total = ops.zeros((K, K), mstype.float32)
    step = max(1, _BLOCK // max(1, n_columns))
    for first in range(0, n_rows, step):
        part = matrix[first : first + step]
        block = ops.select(ops.isfinite(part), part, ops.zeros_like(part)).clamp(-LARGEST, LARGEST)
        total = total + ops.matmul(
            Tensor(np.ascontiguousarray(rows[first : first + step].T)), ops.matmul(block, columns)
        )
    return total.reshape(-1)


@functools.lru_cache(maxsize=64)
def _signs(n: int, start: int) -> NDArray[np.float32]:
    return signs(np.arange(n) + start, COLUMN_SEED).astype(np.float32)


@functools.lru_cache(maxsize=64)
def _row_signs(starts: MatrixPlace) -> NDArray[np.float32]:
    return signs(row_numbers(starts, np.arange), ROW_SEED).astype(np.float32)
