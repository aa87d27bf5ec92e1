"""The error function of arrays, which NumPy lacks."""

from __future__ import annotations

import math

import numpy as np

from hypocenter.compare.values.bits import Array

_erf = np.frompyfunc(math.erf, 1, 1)


def erf(x: Array) -> Array:
    """Element by element, to the last bit or so (about 100 ns each)."""
    return np.asarray(_erf(x), np.float64)
