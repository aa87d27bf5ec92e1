"""A row of numbers on a device that Triton serves: one pass (torch_triton_kernels), not a kernel for each question.

Torch's CUDA builds bring Triton; without it, or where it once fails (it wants a C compiler), the reducer made of
torch's own operators (torch_deferred) does the same. Numbers that were counted are the same integers in both; sums are
better here: each element is exact in float64, where they are added.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hypocenter.formats import FORMATS, Format, format_of
from hypocenter.nouns import Summary
from hypocenter.summary.exponents import n_below
from hypocenter.summary.merge import saturated
from hypocenter.summary.reducers.sampling import RUN_LENGTH, SIZE, run_stride
from hypocenter.summary.reducers.torch_exact import smallest_normal_exponent
from hypocenter.summary.reducers.torch_float64 import has_float64

BLOCK = 1024  # elements that a program takes at a time: 8 of each of its 128 threads, a 16-byte load of bfloat16
MOST_PROGRAMS = 1024  # 8 for each of 128 multiprocessors; their results are added by one program
_HEAD = 8  # numbers in front of the histogram
_NO_PATTERN = 1 << 30  # of numbers of eight bits
_KINDS = ("cuda", "xpu", "cpu")  # AMD's are called cuda too
_PATTERNS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_INTEGERS = frozenset(
    getattr(torch, name) for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64")
)
_INTEGER_BINS = 65  # a uint64 may be rounded to 2**64

_why_off: list[str] = []  # why Triton is not used any more, once it has failed
_unsaid: list[str] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the kernels take numbers of a dtype apart; see torch_triton_kernels."""

    is_float: bool
    is_wide: bool
    fraction: int
    bias: int
    infinity: int
    last: int
    minus_zero_is_nan: bool
    first: int  # exponent of bin 1; bin 0 is for zeros
    bins: int  # a power of two; the last one is for what does not count

    @property
    def constants(self) -> dict[str, Any]:
        """The constants that both kernels are compiled with."""
        return {
            "IS_FLOAT": self.is_float, "IS_WIDE": self.is_wide, "FRACTION": self.fraction, "BIAS": self.bias,
            "INFINITY": self.infinity, "LAST": self.last, "MAGNITUDE": (1 << self.last.bit_length()) - 1,
            "MINUS_ZERO_IS_NAN": self.minus_zero_is_nan, "FIRST": self.first,
        }  # fmt: skip

    def number(self, key: int) -> float:
        """Return the number that a key stands for: a magnitude with its sign."""
        field, fraction = abs(key) >> self.fraction, abs(key) & ((1 << self.fraction) - 1)
        significand = fraction + ((1 << self.fraction) if field else 0)
        return math.copysign(math.ldexp(significand, max(field, 1) - self.bias - self.fraction), key)


@functools.cache
def layout_of(dtype: torch.dtype) -> Layout | None:
    """Return how the kernels take this dtype apart; None if they do not know it."""
    is_integer = dtype in _INTEGERS
    form = FORMATS["float64"] if is_integer else format_of(dtype)
    if form is None or dtype.is_complex:
        return None
    bias = 1 - form.smallest_exponent
    first = 0 if is_integer else form.smallest_exponent - form.fraction_bits
    n_exponents = _INTEGER_BINS if is_integer else form.largest_exponent - first + 1
    return Layout(
        is_float=not is_integer, is_wide=form.name == "float64", fraction=form.fraction_bits, bias=bias,
        infinity=(form.largest_exponent + bias + 1) << form.fraction_bits if form.has_infinity else _NO_PATTERN,
        last=_last(form, bias), minus_zero_is_nan=form.name.endswith("fnuz"), first=first,
        bins=1 << (n_exponents + 1).bit_length(),
    )  # fmt: skip


def _last(form: Format, bias: int) -> int:
    """Return the bit pattern of the largest finite number."""
    significand = int(math.ldexp(form.max, form.fraction_bits - form.largest_exponent))
    return ((form.largest_exponent + bias) << form.fraction_bits) + significand - (1 << form.fraction_bits)


def serves(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether the kernels can be tried on such numbers. Triton is imported by this, if it is there.

    Its interpreter reads from the host, and so serves a CPU only: in tests.
    """
    if _why_off or device.type not in _KINDS or layout_of(dtype) is None or _kernels() is None:
        return False
    return (device.type == "cpu") == _kernels().IS_INTERPRETED and has_float64(device.type)


@functools.cache
def _kernels() -> Any:
    """Return the module of the kernels, or None if Triton is missing or does not fit."""
    if importlib.util.find_spec("triton") is None:
        return None
    try:
        from hypocenter.summary.reducers import torch_triton_kernels
    except Exception:  # a Triton that does not fit
        return None
    return torch_triton_kernels


def reduced(row: Tensor, *, is_full: bool) -> Tensor | None:
    """Launch the kernels for a non-empty row that is served; int64 results on its device, for `read`. Nothing waits.

    None where that fails: no compiler, no driver, a Triton that does not fit. It is not tried again.

    Args:
        row: along one axis.
        is_full: the histogram's fields are of all elements; else of the sample.
    """
    try:
        return launched(row, is_full=is_full)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        _why_off.append(f"{type(error).__name__}: {error}")
        _unsaid[:] = _why_off[:1]
        return None


def tell(warn: Callable[[str], None]) -> None:
    """Warn once that Triton has failed, if it has."""
    while _unsaid:
        warn(f"summaries are made without Triton, which fails here ({_unsaid.pop()[:500]})")


def launched(row: Tensor, *, is_full: bool) -> Tensor:
    """Launch the kernels as `reduced` does, but raise whatever goes wrong."""
    layout, kernels, n = layout_of(row.dtype), _kernels(), row.numel()
    assert layout is not None
    programs = min(-(-n // BLOCK), MOST_PROGRAMS)
    is_whole = is_full or n <= SIZE
    bits = row.view(_PATTERNS[row.dtype.itemsize]) if layout.is_float else row
    bits = bits.view(torch.uint8) if row.dtype is torch.bool else bits
    with _on(row.device):
        result = torch.zeros(_HEAD + layout.bins, dtype=torch.int64, device=row.device)
        is_one = is_whole and programs == 1
        partial = result if is_one else torch.empty(_HEAD * programs, dtype=torch.int64, device=row.device)
        kernels.look[(programs,)](
            bits, partial, result[_HEAD:], n, programs, **layout.constants, BINS=layout.bins, IS_FULL=is_whole,
            BLOCK=BLOCK, enable_fp_fusion=False,
        )  # fmt: skip
        if not is_one:
            kernels.combine[(1,)](
                bits, partial, result, programs, 0 if is_whole else run_stride(n), **layout.constants,
                IS_FULL=is_whole, MOST_PROGRAMS=MOST_PROGRAMS, SIZE=SIZE, RUN_LENGTH=RUN_LENGTH,
                enable_fp_fusion=False,
            )  # fmt: skip
    return result


def _on(device: torch.device) -> Any:
    """Return a context in which Triton launches on this device: it would take the current one."""
    return contextlib.nullcontext() if device.type == "cpu" else getattr(torch, device.type).device(device)


def read(result: NDArray[np.int64], n: int, dtype: torch.dtype, *, is_full: bool) -> Summary:
    """Make a Summary of what `reduced` gave, once it is on the host."""
    layout = layout_of(dtype)
    assert layout is not None
    n_nan, n_posinf, n_neginf, low, high, absmin = result[:6].tolist()
    total, squares = result[6:_HEAD].view(np.float64).tolist()
    counts = result[_HEAD + 1 : -1]
    used = np.flatnonzero(counts)
    first = layout.first + int(used[0]) if used.size else 0
    hist = tuple(counts[used[0] : used[-1] + 1].tolist()) if used.size else ()
    n_hist = n if is_full or n <= SIZE else SIZE
    has_finite = low <= layout.last
    return Summary(
        n=n, n_nan=n_nan, n_posinf=n_posinf, n_neginf=n_neginf, n_hist=n_hist,
        n_zero=int(result[_HEAD]), n_subnormal=n_below(smallest_normal_exponent(dtype), first, hist),
        min=layout.number(low) if has_finite else None, max=layout.number(high) if has_finite else None,
        absmin=layout.number(absmin) if hist else None,
        absmax=layout.number(max(-low, high)) if has_finite else 0.0,
        sum=saturated(total), sumsq=saturated(squares), hist_first=first, hist=hist,
    )  # fmt: skip
