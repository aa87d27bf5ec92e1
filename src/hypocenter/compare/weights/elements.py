"""Number formats of stored tensors: how bits become values, ordinals and other formats, without a training framework.

bfloat16 is the upper half of a float32; the eight-bit formats are those of the OCP 8-bit specification (1.0, 2023) and
their `fnuz` variants. Casts round to nearest, ties to even.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hypocenter.compare.values.bits import decoded
from hypocenter.float8 import numbers_of
from hypocenter.formats import Format, format_of

STORED: dict[str, str] = {
    "float64": "f8", "float32": "f4", "float16": "f2", "bfloat16": "u2", "int64": "i8", "int32": "i4", "int16": "i2",
    "int8": "i1", "uint64": "u8", "uint32": "u4", "uint16": "u2", "uint8": "u1", "bool": "?", "complex64": "c8",
    "complex128": "c16", "float8_e4m3fn": "u1", "float8_e5m2": "u1", "float8_e4m3fnuz": "u1", "float8_e5m2fnuz": "u1",
    "float8_e8m0fnu": "u1",
}  # fmt: skip
"""The numpy type in which each format is held: bits where numpy has no such numbers."""

SAFETENSORS: dict[str, str] = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu", "C64": "complex64",
}  # fmt: skip
"""Names in a safetensors header."""

_EIGHT_BIT = ("float8_e4m3", "float8_e5m2")
CASTABLE = ("float64", "float32", "float16", "bfloat16")

Bits = NDArray[Any]


def item_bytes(dtype: str) -> int:
    """Return the size of one element in bytes."""
    return np.dtype(STORED[dtype]).itemsize


def is_floating(dtype: str) -> bool:
    """Return whether this is a binary floating-point format."""
    return not dtype.startswith("complex") and format_of(dtype) is not None


def _known(dtype: str) -> Format:
    form = format_of(dtype)
    assert form is not None, dtype
    return form


def coarser(a: str, b: str) -> str:
    """Return the one of two floating-point formats with fewer mantissa bits; when equal the one with fewer bytes."""
    return min((a, b), key=lambda name: (_known(name).fraction_bits, item_bytes(name)))


def values(bits: Bits, dtype: str) -> Bits:
    """Return the numbers: floats as float64, complex as complex128, integers and booleans as they are."""
    if is_floating(dtype) or numbers_of(dtype) is not None:
        return decoded(bits, dtype)
    return bits.astype(np.complex128) if dtype.startswith("complex") else bits


def cast(bits: Bits, source: str, target: str) -> Bits:
    """Convert to another floating-point format; a number too large becomes infinite, or NaN if there is no infinity."""
    if source == target:
        return bits
    with np.errstate(over="ignore", invalid="ignore"):
        exact = values(bits, source)
        if target.startswith(_EIGHT_BIT):
            return _to_eight_bit(exact, target)
        if target != "bfloat16":
            return exact.astype(np.dtype(STORED[target]))
        word = exact.astype(np.float32).view(np.uint32)
    rounded = ((word.astype(np.uint64) + 0x7FFF + ((word >> 16) & 1)) >> 16).astype(np.uint16)
    is_nan = (word & 0x7FFF_FFFF) > 0x7F80_0000
    return np.where(is_nan, ((word >> 16) | 0x40).astype(np.uint16), rounded)


def ordinals(bits: Bits, dtype: str) -> NDArray[np.int64]:
    """Return the place of each number in its format, counted from zero: neighbours differ by one; -0 is 0."""
    width = 8 * item_bytes(dtype)
    raw = np.ascontiguousarray(bits).view(f"u{width // 8}").astype(np.uint64)
    magnitude = (raw & np.uint64((1 << (width - 1)) - 1)).astype(np.int64)
    return np.where(raw >> np.uint64(width - 1) == 1, -magnitude, magnitude)


def _to_eight_bit(exact: NDArray[np.float64], dtype: str) -> NDArray[np.uint8]:
    codes = numbers_of(dtype)
    assert codes is not None, dtype
    finite = codes[:128][np.isfinite(codes[:128])]
    step = finite[-1] - finite[-2]
    middles = np.append((finite[:-1] + finite[1:]) / 2, finite[-1] + step / 2)
    size = np.abs(exact)
    code = np.searchsorted(middles, size, side="left")
    on_middle = middles[np.minimum(code, len(middles) - 1)] == size
    code = np.where(on_middle & (code % 2 == 1), code + 1, code)
    code = np.where(np.isnan(exact), 128, code)
    nan = 0x80 if dtype.endswith("fnuz") else 0x7F
    beyond = 0x7C if dtype == "float8_e5m2" else nan
    large = np.where(np.isnan(exact), nan, beyond)
    sign = np.where(np.signbit(exact), 0x80, 0)
    is_large = code >= len(finite)
    result = np.where(is_large, large, code) | np.where(is_large & (large == nan), 0, sign)
    if dtype.endswith("fnuz"):
        result = np.where(~is_large & (code == 0), 0, result)  # it has no negative zero
    return result.astype(np.uint8)
