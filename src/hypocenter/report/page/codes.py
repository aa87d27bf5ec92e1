"""A grid as bytes: log2 of the magnitude in quarter bits, one byte a cell, packed for a page.

Per row a `top` (the largest log2 of the row, rounded up to a quarter) fixes the scale: a code c in 2..254 means
log2 |max| = top + (c - 254) / 4, so a row spans 63 bits below its top, at a precision of an eighth of a bit (9 %).
"""

from __future__ import annotations

import base64
import gzip

import numpy as np
import numpy.typing as npt

MISSING, ZERO, HIGHEST, NOT_FINITE = 0, 1, 254, 255
PER_BIT = 4  # codes per doubling


def encode(absmax: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.uint8], list[float]]:
    """Codes of the same shape, and each row's top."""
    usable = np.isfinite(absmax) & (absmax > 0)
    log2 = np.log2(np.where(usable, absmax, 1.0))
    highest = np.max(np.where(usable, log2, -np.inf), axis=1, initial=-np.inf)
    top = np.where(np.isfinite(highest), np.ceil(highest * PER_BIT) / PER_BIT, 0.0)
    codes = np.clip(np.rint(HIGHEST - (top[:, None] - log2) * PER_BIT), ZERO + 1, HIGHEST)
    codes = np.where(absmax == 0, ZERO, codes)
    codes = np.where(np.isposinf(absmax), NOT_FINITE, codes)
    return np.where(np.isnan(absmax), MISSING, codes).astype(np.uint8), top.tolist()


def decode(codes: npt.NDArray[np.uint8], top: list[float]) -> npt.NDArray[np.float64]:
    """What the page shows for each cell (the page's own decoder is in app.js)."""
    value = 2.0 ** (np.asarray(top)[:, None] + (codes.astype(np.float64) - HIGHEST) / PER_BIT)
    value = np.where(codes == ZERO, 0.0, value)
    return np.where(codes == MISSING, np.nan, np.where(codes == NOT_FINITE, np.inf, value))


def pack(codes: npt.NDArray[np.uint8]) -> str:
    """Differences along each row, gzip, base64. Differences compress better: neighbours in time are alike."""
    delta = np.diff(codes, axis=1, prepend=np.zeros((len(codes), 1), np.uint8))
    return base64.b64encode(gzip.compress(delta.tobytes(), compresslevel=6, mtime=0)).decode("ascii")
