"""Many NumPy arrays -> Summaries: `add` each, `drain` once. Exact, and cheap for many small ones.

What is added may be a view of memory that is overwritten the next moment: all that is needed is read or copied by
`add`. The sample of a large array is the one that TorchReducer takes; sums are float64 sums in the order in which
`reducers.numpy.summarize` makes them, so that with `histogram="full"`, or up to SMALL elements, both agree to the bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from hypocenter.nouns import Summary, replace
from hypocenter.summary.exponents import tally
from hypocenter.summary.merge import saturated
from hypocenter.summary.reducers.numpy import CHUNK, smallest_normal_exponent, summarize
from hypocenter.summary.reducers.sampling import RUN_LENGTH, RUNS, SIZE, SMALL, Moments, assembled, run_stride
from hypocenter.summary.sketch import Placement
from hypocenter.summary.sketch import sketch as sketch_of

_BLOCK = 1 << 15  # elements: 128 KiB


@dataclass(frozen=True, slots=True)
class _Held:
    ticket: int
    n: int
    size: int  # of what was copied
    smallest_normal: int
    moments: Moments | None  # None: of what was copied, which is all


@dataclass(slots=True)
class _Block:
    values: NDArray[np.float32]
    used: int = 0
    held: list[_Held] = field(default_factory=list)


class NumpyReducer:
    """Summarise many arrays; not thread-safe.

    Args:
        histogram: "sample" looks at SIZE elements of arrays of float16 and float32 with more than SMALL elements.
        sketch: also sketch them.
    """

    def __init__(self, histogram: Literal["sample", "full"] = "sample", sketch: bool = False) -> None:
        self._full, self._sketch = histogram == "full", sketch
        self._done: list[Summary | None] = []
        self._sketches: dict[int, tuple[float, ...]] = {}
        self._blocks: list[_Block] = []

    def add(self, array: NDArray[Any], place: Placement | None = None, *, sketch: bool = True) -> int:
        """Take in an array as it is now and return its ticket: the index of its Summary in `drain()`.

        Args:
            place: what part of a larger array it is.
            sketch: False: not this one, although the reducer sketches.
        """
        ticket = len(self._done)
        self._done.append(self._reduce(array, ticket))
        if self._sketch and sketch and array.dtype.kind in "biufc":
            self._sketches[ticket] = tuple(sketch_of(array, place).tolist())
        return ticket

    def _reduce(self, array: NDArray[Any], ticket: int) -> Summary | None:
        n = array.size
        if self._full or not n or array.dtype.name not in ("float16", "float32"):
            return summarize(array)
        row, smallest_normal = array.reshape(-1), smallest_normal_exponent(array.dtype)
        if n <= SMALL:
            self._place(n)[:] = row
            self._blocks[-1].held.append(_Held(ticket, n, n, smallest_normal, None))
            return None
        moments = moments_of(row)
        if moments is None:
            return _sampled(array, smallest_normal)
        self._place(SIZE).reshape(RUNS, RUN_LENGTH)[:] = sample_of(row)
        self._blocks[-1].held.append(_Held(ticket, n, SIZE, smallest_normal, moments))
        return None

    def _place(self, size: int) -> NDArray[np.float32]:
        if not self._blocks or self._blocks[-1].used + size > _BLOCK:
            self._blocks.append(_Block(np.empty(_BLOCK, dtype=np.float32)))
        block = self._blocks[-1]
        start, block.used = block.used, block.used + size
        return block.values[start : block.used]

    def drain(self) -> list[Summary]:
        """Return the Summary of every ticket in order, and start anew."""
        done, blocks, sketches = self._done, self._blocks, self._sketches
        self._done, self._blocks, self._sketches = [], [], {}
        for block in blocks:
            for ticket, summary in _counted(block):
                done[ticket] = summary
        summaries = [summary or Summary() for summary in done]
        for ticket, values in sketches.items():
            summaries[ticket] = replace(summaries[ticket], sketch=values)
        return summaries


def sample_of(row: NDArray[Any]) -> NDArray[Any]:
    """Return the sample of a contiguous row of more than SIZE elements: a view, (RUNS, RUN_LENGTH)."""
    step = row.strides[0]
    return as_strided(row, (RUNS, RUN_LENGTH), (run_stride(row.size) * step, step), writeable=False)


def moments_of(row: NDArray[Any]) -> Moments | None:
    """Return extremes and sums of a row of float16 or float32 values; None where one is not finite."""
    low = high = total = squares = 0.0
    for first in range(0, row.size, CHUNK):
        part = row[first : first + CHUNK].astype(np.float32, copy=False)
        least, most = float(part.min()), float(part.max())
        if not (least > -np.inf and most < np.inf):  # also when they are NaN
            return None
        low, high = (min(low, least), max(high, most)) if first else (least, most)
        wide = part.astype(np.float64)
        total = saturated(total + saturated(float(wide.sum())))
        np.multiply(wide, wide, out=wide)
        squares = saturated(squares + saturated(float(wide.sum())))
    return Moments(low, high, total, squares)


def _sampled(array: NDArray[Any], smallest_normal: int) -> Summary:
    """Summarise an array that is not all finite: everything exactly, but what the sample tells."""
    whole = summarize(array)
    counted = tally(np.ascontiguousarray(sample_of(array.reshape(-1))).astype(np.float32).reshape(-1), [SIZE])
    low, high = (np.inf, -np.inf) if whole.min is None or whole.max is None else (whole.min, whole.max)
    moments = Moments(low, high, whole.sum, whole.sumsq, whole.n_nan, whole.n_posinf, whole.n_neginf)
    return assembled(array.size, SIZE, smallest_normal, moments, counted)


def _counted(block: _Block) -> Iterator[tuple[int, Summary]]:
    if not block.held:
        return
    values, sizes = block.values[: block.used], [held.size for held in block.held]
    starts = np.cumsum([0, *sizes[:-1]])
    with np.errstate(all="ignore"):  # NaN among the values is news, not a mistake
        low, high = np.minimum.reduceat(values, starts).tolist(), np.maximum.reduceat(values, starts).tolist()
        wide = values.astype(np.float64)
        squared = wide * wide
        tallies = tally(values, sizes)
    for i, (held, start) in enumerate(zip(block.held, starts.tolist(), strict=True)):
        moments, end = held.moments, start + held.size
        if moments is None and -np.inf < low[i] and high[i] < np.inf:
            moments = Moments(low[i], high[i], float(wide[start:end].sum()), float(squared[start:end].sum()))
        if moments is not None:
            yield held.ticket, assembled(held.n, held.size, held.smallest_normal, moments, tallies, i)
        else:
            yield held.ticket, summarize(values[start:end], smallest_normal=held.smallest_normal)
