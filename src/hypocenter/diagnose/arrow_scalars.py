"""Constants for Arrow's functions, made once.

Handed a plain Python value, pyarrow infers its type each time and tries to import dateutil for it: 0.1 ms where that is
not installed, and a job of many ranks asks tens of thousands of times.
"""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa


@lru_cache(maxsize=256, typed=True)
def arrow(value: str | int | float) -> pa.Scalar:
    """The value as an Arrow scalar."""
    return pa.scalar(value)
