"""By how much formats round."""

from __future__ import annotations

_UNIT = {  # unit roundoff: half the distance from 1 to the next number
    "float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8,
    "float8_e4m3fn": 2.0**-4, "float8_e5m2": 2.0**-3,
}  # fmt: skip


def unit(dtype: str) -> float:
    """Largest relative error of rounding to a format; of an unknown one that of float32."""
    return _UNIT.get(dtype, _UNIT["float32"])


def rounding(dtype: str) -> float:
    """How far off values are put where noise is measured: as `run --calibrate` does it, twice the unit of a format that
    adds up in itself, the unit of one that is added up in float32."""
    return unit(dtype) * (1.0 if dtype in ("bfloat16", "float16") else 2.0)
