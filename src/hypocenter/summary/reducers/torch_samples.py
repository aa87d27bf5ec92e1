"""Fixed samples of CPU tensors, gathered while a tensor is in cache and counted for all tensors together at the end.

A small tensor is copied whole and everything about it is found out at the end: one copy costs less than four
reductions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hypocenter.nouns import Summary
from hypocenter.summary.exponents import tally
from hypocenter.summary.reducers.sampling import RUN_LENGTH, RUNS, SIZE, Moments, assembled, run_stride
from hypocenter.summary.reducers.torch_exact import exact, smallest_normal_exponent

_BLOCK = 1 << 15  # elements: 128 KiB, allocated when first needed and kept from step to step

SMALLEST_NORMAL = {dtype: smallest_normal_exponent(dtype) for dtype in (torch.float16, torch.bfloat16, torch.float32)}


def spread(row: Tensor) -> Tensor:
    """Return all elements when there are at most SIZE, else evenly spread short runs: a view, (RUNS, RUN_LENGTH)."""
    n = row.numel()
    if n <= SIZE:
        return row
    return row.as_strided((RUNS, RUN_LENGTH), (run_stride(n), 1), row.storage_offset())


class Samples:
    """Samples that were copied from many tensors, until `drain`."""

    def __init__(self) -> None:
        self._whole = _Blocks(_summaries_of_whole)
        self._spread = _Blocks(_summaries_of_spread)

    def add_whole(self, ticket: int, t: Tensor, n: int) -> None:
        """Copy all n elements (at most SMALL) of float16, bfloat16 or float32 values."""
        self._whole.place(n).view(t.shape).copy_(t)
        self._whole.held.append((ticket, n, n, t.dtype, None))

    def add_spread(self, ticket: int, dense: Tensor, n: int, moments: Moments) -> None:
        """Copy SIZE of the n elements, which lie one after the other in memory."""
        sample = dense.as_strided((RUNS, RUN_LENGTH), (run_stride(n), 1), dense.storage_offset())
        self._spread.place(SIZE).view(RUNS, RUN_LENGTH).copy_(sample)
        self._spread.held.append((ticket, n, SIZE, dense.dtype, moments))

    def drain(self) -> list[tuple[int, Summary]]:
        """Return (ticket, Summary) of all that was added, and start anew with the memory at hand."""
        with np.errstate(all="ignore"):  # NaN among the values is news, not a mistake
            return [*self._whole.drain(), *self._spread.drain()]


_Held = tuple[int, int, int, torch.dtype, Moments | None]  # ticket, n, size of the sample, dtype, moments if known


@dataclass(slots=True)
class _Blocks:
    """Samples as float32, one after the other, in blocks of memory that are used again."""

    summaries: Callable[[NDArray[np.float32], list[_Held]], Iterator[tuple[int, Summary]]]
    held: list[_Held] = field(default_factory=list)  # of the block in use
    full: list[tuple[Tensor, int, list[_Held]]] = field(default_factory=list)
    free: list[Tensor] = field(default_factory=list)
    block: Tensor | None = None
    used: int = 0

    def place(self, size: int) -> Tensor:
        """Return room for the next sample."""
        if self.block is None or self.used + size > _BLOCK:
            self._next_block()
        start, self.used = self.used, self.used + size
        assert self.block is not None
        return self.block[start : self.used]

    def _next_block(self) -> None:
        if self.block is not None:
            self.full.append((self.block, self.used, self.held))
        self.block = self.free.pop() if self.free else torch.empty(_BLOCK, dtype=torch.float32, device="cpu")
        self.used, self.held = 0, []

    def drain(self) -> Iterator[tuple[int, Summary]]:
        """Yield (ticket, Summary) of all that was added."""
        if self.block is not None:
            self.full.append((self.block, self.used, self.held))
            self.block, self.used, self.held = None, 0, []
        full, self.full = self.full, []
        for block, used, held in full:
            self.free.append(block)
            if held:
                yield from self.summaries(block.numpy()[:used], held)


def _summaries_of_spread(values: NDArray[np.float32], held: list[_Held]) -> Iterator[tuple[int, Summary]]:
    tallies = tally(values, [size for _, _, size, _, _ in held])
    for i, (ticket, n, size, dtype, moments) in enumerate(held):
        assert moments is not None
        yield ticket, assembled(n, size, SMALLEST_NORMAL[dtype], moments, tallies, i)


def _summaries_of_whole(values: NDArray[np.float32], held: list[_Held]) -> Iterator[tuple[int, Summary]]:
    sizes = [size for _, _, size, _, _ in held]
    starts = np.cumsum([0, *sizes[:-1]])
    low, high = np.minimum.reduceat(values, starts).tolist(), np.maximum.reduceat(values, starts).tolist()
    wide = values.astype(np.float64)
    with np.errstate(invalid="ignore"):  # inf - inf: such a tensor is looked at again below
        total = np.add.reduceat(wide, starts).tolist()
        squares = np.add.reduceat(wide * wide, starts).tolist()
    tallies = tally(values, sizes)
    for i, (ticket, n, size, dtype, _) in enumerate(held):
        if -np.inf < low[i] and high[i] < np.inf:
            moments = Moments(low[i], high[i], total[i], squares[i])
            yield ticket, assembled(n, size, SMALLEST_NORMAL[dtype], moments, tallies, i)
        else:
            bad = torch.from_numpy(values[starts[i] : starts[i] + size])
            yield ticket, exact(bad, SMALLEST_NORMAL[dtype])
