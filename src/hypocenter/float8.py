"""The numbers of eight bits: what each of the 256 codes of a format stands for. Sources: those of `formats`."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from hypocenter.formats import format_of

SCALE = "float8_e8m0fnu"
"""A power of two and nothing else, by which blocks are scaled: OCP Microscaling Formats 1.0 (2023), section 5.4."""


@cache
def numbers_of(dtype: str) -> NDArray[np.float64] | None:
    """Return the number that each of the 256 codes stands for; None for a format that has not eight bits."""
    codes = np.arange(256)
    if dtype == SCALE:
        return np.append(np.ldexp(1.0, codes[:-1] - 127), np.nan)
    form = format_of(dtype)
    if form is None or not dtype.startswith("float8_"):
        return None
    fraction, exponent = codes & ((1 << form.fraction_bits) - 1), (codes & 0x7F) >> form.fraction_bits
    significand = fraction + np.where(exponent > 0, 1 << form.fraction_bits, 0)
    power = np.maximum(exponent, 1) - 1 + form.smallest_exponent - form.fraction_bits
    size = np.ldexp(significand.astype(np.float64), power)
    beyond = size > form.max
    size[beyond] = np.where(form.has_infinity & (fraction[beyond] == 0), np.inf, np.nan)
    found = np.where(codes & 0x80, -size, size)
    if dtype.endswith("fnuz"):
        found[0x80] = np.nan  # the bits of a negative zero
    return found
