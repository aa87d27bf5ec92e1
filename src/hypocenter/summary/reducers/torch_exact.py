"""Every field of a Summary, exactly, with torch: on any device, or on the CPU if that has no float64. Waits for it."""

from __future__ import annotations

import math
import struct

import torch
from torch import Tensor

from hypocenter.nouns import Summary
from hypocenter.summary.exponents import BINARY32, BINARY64, Layout, densify, n_below
from hypocenter.summary.merge import merge_all, saturated
from hypocenter.summary.reducers.torch_float64 import has_float64
from hypocenter.summary.reducers.torch_values import in_a_row

CHUNK = 1 << 18  # elements: with its copies 1-4 MiB, which stays in a second-level cache, and bounds the extra memory


def exact(values: Tensor, smallest_normal: int | None = None) -> Summary:
    """Summarise plain, real, strided values (torch_values.local_values).

    Args:
        values: the numbers.
        smallest_normal: binary exponent of the format that they had, where that is not their dtype.
    """
    if values.dtype is torch.bool:
        return _exact_bool(values)
    if not has_float64(values.device.type):
        values = values.cpu()
    row = in_a_row(values)
    if smallest_normal is None:
        smallest_normal = smallest_normal_exponent(values.dtype)
    chunks = row.split(CHUNK) if row.numel() else ()
    return merge_all(_exact_chunk(_widened(chunk), smallest_normal) for chunk in chunks)


def _exact_bool(values: Tensor) -> Summary:
    n, ones = values.numel(), int(torch.count_nonzero(values).item())
    return Summary(
        n=n, n_hist=n, n_zero=n - ones, min=float(ones == n) if n else None, max=float(ones > 0) if n else None,
        absmin=1.0 if ones else None, absmax=float(ones > 0), sum=float(ones), sumsq=float(ones),
        hist=(ones,) if ones else (),
    )  # fmt: skip


def smallest_normal_exponent(dtype: torch.dtype) -> int:
    """Return the binary exponent of the smallest normal number; integers and bool have no subnormals."""
    if not dtype.is_floating_point:
        return -(1 << 30)
    return math.frexp(torch.finfo(dtype).smallest_normal)[1] - 1


def _widened(chunk: Tensor) -> Tensor:
    """Return the same numbers as float32 if it holds them all, else as float64 (integers beyond 2**53 are rounded)."""
    if chunk.dtype in (torch.float32, torch.float64):
        return chunk.contiguous()
    holds = chunk.dtype.itemsize <= 2 if chunk.dtype.is_floating_point else chunk.dtype.itemsize == 1
    return chunk.to(torch.float32 if holds or chunk.dtype is torch.bool else torch.float64)


def _exact_chunk(x: Tensor, smallest_normal: int) -> Summary:
    layout = BINARY32 if x.dtype is torch.float32 else BINARY64
    bits = x.view(torch.int32 if layout is BINARY32 else torch.int64)
    magnitude = bits & layout.magnitude
    field = magnitude >> layout.fraction_bits
    fields: list[int] = torch.bincount(field, minlength=layout.n_bins).tolist()
    n, (n_nan, n_posinf, n_neginf) = x.numel(), (0, 0, 0)
    if fields[-1]:
        n_nan = int((magnitude > layout.infinity).sum().item())
        n_posinf = int((bits == layout.infinity).sum().item())
        n_neginf = fields[-1] - n_nan - n_posinf
        x, magnitude = x[magnitude < layout.infinity], magnitude[magnitude < layout.infinity]
    n_zero = fields[0]
    counts = {i - layout.bias: count for i, count in enumerate(fields[1:-1], 1) if count}
    if fields[0]:
        low = _low_exponents(magnitude, layout)
        n_zero -= sum(low.values())
        counts.update(low)
    first, hist = densify(counts)
    low, high, total, squares = _moments(x) if x.numel() else (None, None, 0.0, 0.0)
    return Summary(
        n=n, n_nan=n_nan, n_posinf=n_posinf, n_neginf=n_neginf, n_hist=n, n_zero=n_zero,
        n_subnormal=n_below(smallest_normal, first, hist), hist_first=first, hist=hist,
        absmin=_absmin(magnitude, layout) if hist else None, absmax=max(abs(low or 0.0), abs(high or 0.0)), min=low,
        max=high, sum=total, sumsq=squares,
    )  # fmt: skip


def _moments(x: Tensor) -> tuple[float, float, float, float]:
    """Return min, max, sum and sum of squares of finite values; + 0.0 makes a negative zero positive."""
    low, high = (bound.item() for bound in torch.aminmax(x))
    wide = x.to(torch.float64)
    return low + 0.0, high + 0.0, saturated(wide.sum().item()), saturated((wide * wide).sum().item())


def _low_exponents(magnitude: Tensor, layout: Layout) -> dict[int, int]:
    """Count the exponents of values below the wide format's smallest normal: an integer as float64 shows its own."""
    significand = magnitude[(magnitude > 0) & (magnitude < (1 << layout.fraction_bits))]
    if not significand.numel():
        return {}
    exponents = (significand.to(torch.float64).view(torch.int64) >> BINARY64.fraction_bits) - BINARY64.bias
    found = torch.bincount(exponents, minlength=1).tolist()
    return {i + 1 - layout.bias - layout.fraction_bits: count for i, count in enumerate(found) if count}


def _absmin(magnitude: Tensor, layout: Layout) -> float:
    least = int(magnitude.masked_fill(magnitude == 0, layout.infinity).min().item())
    if layout is BINARY32:
        return struct.unpack("<f", struct.pack("<i", least))[0]
    return struct.unpack("<d", struct.pack("<q", least))[0]
