"""By how much formats round."""

from __future__ import annotations

from hypocenter.formats import FORMATS, Format, format_of


def unit(dtype: str) -> float:
    """Largest relative error of rounding to a format; of an unknown one that of float32."""
    return _format(dtype).roundoff


def rounding(dtype: str) -> float:
    """How far off values are put where noise is measured, as `run --calibrate` does it."""
    return _format(dtype).noise


def _format(dtype: str) -> Format:
    return format_of(dtype) or FORMATS["float32"]
