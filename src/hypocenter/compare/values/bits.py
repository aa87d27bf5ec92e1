"""From the bits of a stored number to float64, for every format of safetensors; no framework is needed.

bfloat16 is the upper half of a float32. float8 values are looked up in a table of 256 (OCP 8-bit Floating Point
Specification, revision 1.0, 2023, table 1; `fnuz`: Graphcore/AMD, arXiv 2206.02915).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Raw = npt.NDArray[Any]  # as stored: the bits of the formats that NumPy lacks


@dataclass(frozen=True, slots=True, kw_only=True)
class Small:
    """A format of eight bits."""

    exponent_bits: int
    fraction_bits: int
    bias: int
    has_infinity: bool
    is_fnuz: bool  # no negative zero: its bits are the only NaN


# safetensors' name of a format: (as in Reading.dtype, what it is stored as)
FORMATS: dict[str, tuple[str, str]] = {
    "F64": ("float64", "<f8"), "F32": ("float32", "<f4"), "F16": ("float16", "<f2"), "BF16": ("bfloat16", "<u2"),
    "F8_E4M3": ("float8_e4m3fn", "u1"), "F8_E5M2": ("float8_e5m2", "u1"),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", "u1"), "F8_E5M2FNUZ": ("float8_e5m2fnuz", "u1"),
    "F8_E8M0": ("float8_e8m0fnu", "u1"),
    "I64": ("int64", "<i8"), "I32": ("int32", "<i4"), "I16": ("int16", "<i2"), "I8": ("int8", "i1"),
    "U64": ("uint64", "<u8"), "U32": ("uint32", "<u4"), "U16": ("uint16", "<u2"), "U8": ("uint8", "u1"),
    "BOOL": ("bool", "u1"),
}  # fmt: skip
_SMALL = {
    "float8_e4m3fn": Small(exponent_bits=4, fraction_bits=3, bias=7, has_infinity=False, is_fnuz=False),
    "float8_e5m2": Small(exponent_bits=5, fraction_bits=2, bias=15, has_infinity=True, is_fnuz=False),
    "float8_e4m3fnuz": Small(exponent_bits=4, fraction_bits=3, bias=8, has_infinity=False, is_fnuz=True),
    "float8_e5m2fnuz": Small(exponent_bits=5, fraction_bits=2, bias=16, has_infinity=False, is_fnuz=True),
}


def decoded(raw: Raw, dtype: str) -> Array:
    """The numbers behind stored bits, in float64 (integers beyond 2^53 are rounded).

    Args:
        raw: as stored.
        dtype: as in Reading.dtype.
    """
    if dtype == "bfloat16":
        with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
            return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    if dtype in _SMALL or dtype == "float8_e8m0fnu":
        return _table(dtype)[raw]
    return raw.astype(np.float64)


@functools.lru_cache(maxsize=8)
def _table(dtype: str) -> Array:
    if dtype == "float8_e8m0fnu":  # OCP Microscaling Formats 1.0: a power of two; 255 is NaN
        values = np.ldexp(1.0, np.arange(256) - 127)
        values[255] = np.nan
        return values
    form = _SMALL[dtype]
    bits = np.arange(256)
    fraction = bits & ((1 << form.fraction_bits) - 1)
    exponent = (bits >> form.fraction_bits) & ((1 << form.exponent_bits) - 1)
    significand = np.where(exponent > 0, fraction + (1 << form.fraction_bits), fraction)
    values = np.ldexp(significand.astype(np.float64), np.maximum(exponent, 1) - form.bias - form.fraction_bits)
    if form.has_infinity:
        top = exponent == (1 << form.exponent_bits) - 1
        values = np.where(top, np.where(fraction == 0, np.inf, np.nan), values)
    elif not form.is_fnuz:
        values[(bits & 0x7F) == 0x7F] = np.nan
    values = np.where(bits >= 128, -values, values)
    if form.is_fnuz:
        values[128] = np.nan
    return values
