"""From the bits of a stored number to float64, for every format of safetensors; no framework is needed.

bfloat16 is the upper half of a float32; values of eight bits are looked up.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hypocenter.float8 import numbers_of

Array = npt.NDArray[np.float64]
Raw = npt.NDArray[Any]  # as stored: the bits of the formats that NumPy lacks


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


def decoded(raw: Raw, dtype: str) -> Array:
    """The numbers behind stored bits, in float64 (integers beyond 2^53 are rounded).

    Args:
        raw: as stored.
        dtype: as in Reading.dtype.
    """
    if dtype == "bfloat16":
        with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
            return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    table = numbers_of(dtype)
    return raw.astype(np.float64) if table is None else table[raw]
