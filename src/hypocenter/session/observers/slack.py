"""How far a value may be from what it was, without anybody having written another one to it."""

from __future__ import annotations

import functools

from hypocenter.formats import FORMATS

ROUNDINGS, FEW_ROUNDINGS = 32, 2  # of the largest of a tensor, in its format, or in a format of 16 bits


@functools.cache
def slack_of(dtype: str) -> float:
    """Return the share of a tensor's largest value by which a weight that is moved and put back may be off."""
    form = FORMATS.get(dtype)
    return 0.0 if form is None else form.eps * (ROUNDINGS if form.fraction_bits >= 23 else FEW_ROUNDINGS)
