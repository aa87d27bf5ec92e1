"""A fixed sample of each CPU tensor, gathered while the tensor is in cache, counted for all tensors together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from hypocenter.nouns import Summary
from hypocenter.summary.exponents import Tally, tally
from hypocenter.summary.reducers.torch_exact import smallest_normal_exponent

RUNS, RUN_LENGTH = 128, 8  # a run lies in one or two cache lines: 1024 lone elements cost three times as much
SIZE = RUNS * RUN_LENGTH  # elements: a fraction is then known to 1/sqrt(SIZE), 3 per cent
_BLOCK = 256 * SIZE  # elements: 1 MiB, allocated when first needed and kept from step to step

_SMALLEST_NORMAL = {dtype: smallest_normal_exponent(dtype) for dtype in (torch.float16, torch.bfloat16, torch.float32)}


def sample_of(row: Tensor) -> Tensor:
    """Return all elements when there are at most SIZE, else evenly spread short runs: a view, (RUNS, RUN_LENGTH)."""
    n = row.numel()
    if n <= SIZE:
        return row
    return row.as_strided((RUNS, RUN_LENGTH), ((n - RUN_LENGTH) // (RUNS - 1), 1), row.storage_offset())


@dataclass(slots=True)
class Samples:
    """The samples of many tensors, as float32, one after the other, in blocks."""

    _blocks: list[_Block] = field(default_factory=lambda: [])
    _at: int = 0  # block in use

    def add(self, ticket: int, row: Tensor, moments: tuple[float, float, float, float]) -> None:
        """Copy the sample of finite values in `row`, whose (min, max, sum, sum of squares) are known."""
        size = min(row.numel(), SIZE)
        while self._at < len(self._blocks) and self._blocks[self._at].used + size > _BLOCK:
            self._at += 1
        if self._at == len(self._blocks):
            self._blocks.append(_Block())
        self._blocks[self._at].add(ticket, row, size, moments)

    def drain(self) -> list[tuple[int, Summary]]:
        """Return (ticket, Summary) of all that was added, and start anew with the memory at hand."""
        found = [pair for block in self._blocks for pair in block.summaries()]
        for block in self._blocks:
            block.clear()
        self._at = 0
        return found


@dataclass(slots=True)
class _Block:
    values: Tensor = field(default_factory=lambda: torch.empty(_BLOCK, dtype=torch.float32, device="cpu"))
    used: int = 0
    held: list[tuple[int, int, int, torch.dtype, tuple[float, float, float, float]]] = field(default_factory=lambda: [])

    def add(self, ticket: int, row: Tensor, size: int, moments: tuple[float, float, float, float]) -> None:
        sample = sample_of(row)
        self.values[self.used : self.used + size].view(sample.shape).copy_(sample)
        self.used += size
        self.held.append((ticket, row.numel(), size, row.dtype, moments))

    def clear(self) -> None:
        self.used, self.held = 0, []

    def summaries(self) -> Iterator[tuple[int, Summary]]:
        if not self.held:
            return
        values: np.ndarray = self.values.numpy()[: self.used]
        tallies = tally(values, [size for _, _, size, _, _ in self.held])
        for (ticket, n, size, dtype, moments), counted in zip(self.held, tallies, strict=True):
            yield ticket, assembled(n, size, _SMALLEST_NORMAL[dtype], moments, counted)


def assembled(
    n: int, n_hist: int, smallest_normal: int, moments: tuple[float, float, float, float], counted: Tally
) -> Summary:
    """Put together the Summary of finite values from (min, max, sum, sum of squares) and a counted sample."""
    low, high, total, squares = moments
    return Summary(
        n=n, n_hist=n_hist, n_zero=counted.n_zero, n_subnormal=counted.n_below(smallest_normal),
        min=low + 0.0, max=high + 0.0, absmin=counted.absmin, absmax=max(abs(low), abs(high)), sum=total, sumsq=squares,
        hist_first=counted.first, hist=counted.counts,
    )  # fmt: skip
