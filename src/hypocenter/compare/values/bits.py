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


def decoded(raw: Raw, dtype: str) -> Array:
    """Return the numbers behind stored bits, in float64 (integers beyond 2^53 are rounded).

    Args:
        raw: as stored.
        dtype: as in Reading.dtype.
    """
    if dtype == "bfloat16":
        with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
            return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    table = numbers_of(dtype)
    return raw.astype(np.float64) if table is None else table[raw]
