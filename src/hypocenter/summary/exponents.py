"""Binary exponents of floating-point bit patterns, many tensors at once: floor(log2|x|) without a logarithm.

IEEE 754-2019, 3.4: a normal number's exponent is its biased exponent field less the bias; a subnormal's is that of its
integer significand less (bias - 1 + fraction bits). Only integer operations are used: a flush-to-zero mode of the
processor changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where the fields of a binary floating-point format lie."""

    fraction_bits: int
    bias: int
    infinity: int  # the bit pattern of +inf: also the mask of the exponent field
    magnitude: int  # mask of everything but the sign

    @property
    def n_bins(self) -> int:
        """The number of biased exponents, the special one included."""
        return 2 * self.bias + 2


BINARY32 = Layout(fraction_bits=23, bias=127, infinity=0x7F80_0000, magnitude=0x7FFF_FFFF)  # IEEE 754-2019, table 3.5
BINARY64 = Layout(
    fraction_bits=52, bias=1023, infinity=0x7FF0 << 48, magnitude=(1 << 63) - 1
)  # IEEE 754-2019, table 3.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Tallies:
    """Per tensor: its zeros, its smallest nonzero magnitude, and the exponents of its nonzero finite values."""

    n_zero: list[int]
    absmin: list[float | None]
    first: list[int]  # exponent of counts[0]
    counts: list[tuple[int, ...]]


def tally(values: NDArray[np.floating], lengths: list[int]) -> Tallies:
    """Count the exponents of consecutive runs of float32 or float64 values; NaN and infinities are left out.

    Args:
        values: one contiguous axis.
        lengths: of the runs, each at least 1; their sum is the length of `values`.
    """
    layout = BINARY32 if values.dtype == np.float32 else BINARY64
    magnitude = values.view(np.int32 if layout is BINARY32 else np.int64) & layout.magnitude
    field = magnitude >> layout.fraction_bits
    rows = np.repeat(np.arange(len(lengths), dtype=np.int32) * layout.n_bins, lengths)
    counts = np.bincount(field + rows, minlength=len(lengths) * layout.n_bins).reshape(len(lengths), layout.n_bins)
    low = _low(magnitude, rows, layout) if counts[:, 0].any() else {}
    first, dense = _dense(counts, low, layout)
    return Tallies(
        n_zero=[n - sum(low[i].values()) if i in low else n for i, n in enumerate(counts[:, 0].tolist())],
        absmin=_smallest_nonzero(magnitude, lengths, layout),
        first=first,
        counts=dense,
    )


def n_below(exponent: int, first: int, counts: tuple[int, ...]) -> int:
    """Count the values with a smaller exponent: the subnormals, for that of a format's smallest normal number."""
    return sum(counts[: exponent - first]) if exponent > first else 0


def _dense(
    counts: NDArray[np.intp], low: dict[int, dict[int, int]], layout: Layout
) -> tuple[list[int], list[tuple[int, ...]]]:
    """Return the exponent of the first occupied bin of every run, and its counts from there to the last one."""
    normal = counts[:, 1:-1]
    is_used = normal != 0
    begins = is_used.argmax(axis=1).tolist()
    ends = (is_used.shape[1] - is_used[:, ::-1].argmax(axis=1)).tolist()
    firsts = [begin + 1 - layout.bias for begin in begins]
    dense = [tuple(row[begin:end].tolist()) for row, begin, end in zip(normal, begins, ends, strict=True)]
    for i in (~is_used.any(axis=1)).nonzero()[0].tolist():
        firsts[i], dense[i] = 0, ()
    for i, bins in low.items():
        firsts[i], dense[i] = densify(bins | dict(enumerate(dense[i], firsts[i])))
    return firsts, dense


def _smallest_nonzero(magnitude: NDArray[np.integer], lengths: list[int], layout: Layout) -> list[float | None]:
    starts = np.concatenate(([0], np.cumsum(lengths)[:-1])).astype(np.intp)
    wanted = np.where((magnitude == 0) | (magnitude >= layout.infinity), layout.infinity, magnitude).astype(
        magnitude.dtype
    )
    found = np.minimum.reduceat(wanted, starts).view(np.float32 if layout is BINARY32 else np.float64)
    return [None if value == np.inf else value for value in found.tolist()]


def _low(magnitude: NDArray[np.integer], rows: NDArray[np.int32], layout: Layout) -> dict[int, dict[int, int]]:
    """Count the exponents of the subnormals, per run: few or none as a rule, so this may cost more."""
    at = np.nonzero((magnitude < (1 << layout.fraction_bits)) & (magnitude != 0))[0]
    exponents = significand_exponents(magnitude[at]) + (1 - layout.bias - layout.fraction_bits)
    found: dict[int, dict[int, int]] = {}
    for row, exponent in zip((rows[at] // layout.n_bins).tolist(), exponents.tolist(), strict=True):
        bins = found.setdefault(row, {})
        bins[exponent] = bins.get(exponent, 0) + 1
    return found


def significand_exponents(significand: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return floor(log2) of positive integers below 2**53: the exponent field of each as float64, which is exact."""
    bits = significand.astype(np.float64).view(np.int64)
    return (bits >> BINARY64.fraction_bits) - BINARY64.bias


def densify(counts: dict[int, int]) -> tuple[int, tuple[int, ...]]:
    """Turn counts by exponent into (first exponent, counts without zeros at either end); (0, ()) if there are none."""
    used = [exponent for exponent, count in counts.items() if count]
    if not used:
        return 0, ()
    first, last = min(used), max(used)
    return first, tuple(counts.get(exponent, 0) for exponent in range(first, last + 1))
