"""The part of hypocenter.session.framework that holds where arrays are NumPy's, on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hypocenter.formats import FORMATS
from hypocenter.session.framework import SAMPLE, Then, spacing

Array = NDArray[Any]


class HostArrays:
    """Arrays on the host."""

    xp: Any = np

    def copied(self, array: Array) -> Array:
        """A copy."""
        return array.copy()

    def wide(self, array: Array) -> Array:
        """In float64."""
        return np.asarray(array, np.float64)

    def ulp(self, values: Array, dtype: Any) -> Array:
        """By FORMATS."""
        return spacing(np, values, FORMATS[self.name_of(dtype)])

    def name_of(self, dtype: Any) -> str:
        """Without a framework's name in front."""
        return str(dtype).lower().rpartition(".")[2]

    def deferred(self) -> AtOnce:
        """Numbers are on the host already."""
        return AtOnce()


class AtOnce:
    """Hands numbers on at once: they wait for nobody."""

    def add(self, numbers: Array, then: Then) -> None:
        """Call `then`."""
        then(numbers.tolist())

    def read(self) -> None:
        """Nothing waits."""


def strided(array: Array, size: int = SAMPLE) -> Array:
    """At most `size` elements at an equal stride, flat; a view where the array is contiguous."""
    return array.reshape(-1)[:: -(-array.size // size)]
