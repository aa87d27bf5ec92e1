"""Numbers whose sums are exact in a format, different for each rank: what a collective must give is known to the bit.

A format with p significant bits holds every integer up to 2**p, so integers whose partial sums stay below it can be
added in any order without rounding. Where there are more ranks than that, only every m-th adds at an element.
"""

from __future__ import annotations

import torch

from hypocenter.formats import FORMATS

EXACT = {torch.int64: 2**40} | {  # largest n such that all integers up to n are exact; of int64 more than is needed
    getattr(torch, name): FORMATS[name].whole_up_to for name in ("float64", "float32", "float16", "bfloat16")
}
NAMES = {dtype: str(dtype).removeprefix("torch.") for dtype in EXACT}
_WIDEST = 2**40  # of a single number: leaves room in int64 for the sum over 2**22 ranks


def contribution(
    rank: int, n_ranks: int, n_elements: int, dtype: torch.dtype, salt: int = 0, *, start: int = 0
) -> torch.Tensor:
    """Return what `rank` puts in from element `start` on: int64 on the CPU, exact in `dtype`, as are all sums."""
    index = torch.arange(start, start + n_elements, dtype=torch.int64)
    every = -(-n_ranks // EXACT[dtype])  # 1, but for very many ranks
    widest = min(EXACT[dtype] // (-(-n_ranks // every)), _WIDEST)
    numbers = _mixed(index * 1_000_003 + rank * 7_919 + salt * 104_729) % (2 * widest + 1) - widest
    return numbers if every == 1 else torch.where((index + rank) % every == 0, numbers, torch.zeros_like(numbers))


def total(n_ranks: int, n_elements: int, dtype: torch.dtype, *, start: int = 0) -> torch.Tensor:
    """Return the sum over all ranks from element `start` on, int64."""
    sums = torch.zeros(n_elements, dtype=torch.int64)
    for rank in range(n_ranks):
        sums += contribution(rank, n_ranks, n_elements, dtype, start=start)
    return sums


def whose(error: torch.Tensor, n_ranks: int, dtype: torch.dtype) -> tuple[int, float] | None:
    """Return the rank whose contribution times a factor is this error of the sum; -1: left out, 1: counted twice."""
    if error.numel() < 16 or not bool(torch.isfinite(error).all()):  # with a few numbers anything fits
        return None
    for rank in range(n_ranks):
        theirs = contribution(rank, n_ranks, error.numel(), dtype).double()
        at = int(theirs.abs().argmax())
        if theirs[at] == 0:
            continue
        factor = float(error[at] / theirs[at])
        if factor != 0 and torch.equal(theirs * factor, error):
            return rank, factor
    return None


def _mixed(x: torch.Tensor) -> torch.Tensor:
    """Return non-negative numbers that look random: shifts and products as MurmurHash3 ends; int64 wraps around."""
    x = x & 0x3FFFFFFFFFFFFFFF
    for factor in (0x7F4A7C15, 0x1CE4E5B9):
        x = ((x ^ (x >> 29)) * factor) & 0x3FFFFFFFFFFFFFFF
    return x ^ (x >> 31)
