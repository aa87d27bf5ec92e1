"""A tensor that is read by parts: boxes of its index space, so that a checkpoint larger than memory streams."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

Box = tuple[tuple[int, int], ...]
"""First and last + 1 index along every dimension."""

PART = 1 << 20  # elements read at a time: 8 MiB as float64


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """Shape and format, and where the elements come from (`read`)."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def n(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def is_turned(self) -> bool:
        """Whether rows are far apart in the file, so that square tiles are read faster than rows."""
        return False

    def read(self, box: Box) -> NDArray[Any]:
        """The bits of a box, as `elements.STORED` holds them. Raises CheckpointError when the file has not got them."""
        raise NotImplementedError


def whole(shape: tuple[int, ...]) -> Box:
    """The box of all of it."""
    return tuple((0, size) for size in shape)


def extent(box: Box) -> tuple[int, ...]:
    """The shape of a box."""
    return tuple(stop - start for start, stop in box)


def boxes(shape: tuple[int, ...], *, tiled: bool = False, at_most: int = PART) -> Iterator[Box]:
    """Cut a tensor into boxes of at most so many elements, in row-major order; square tiles when asked for."""
    if math.prod(shape) == 0:
        return
    if tiled and len(shape) == 2:
        side = math.isqrt(at_most)
        for top in range(0, shape[0], side):
            for left in range(0, shape[1], side):
                yield (top, min(top + side, shape[0])), (left, min(left + side, shape[1]))
        return
    if not shape:
        yield ()
        return
    inner = math.prod(shape[1:])
    if inner <= at_most:
        step = max(1, at_most // inner)
        for start in range(0, shape[0], step):
            yield ((start, min(start + step, shape[0])), *whole(shape[1:]))
        return
    for row in range(shape[0]):
        for rest in boxes(shape[1:], at_most=at_most):
            yield ((row, row + 1), *rest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned(Tensor):
    """A tensor that is to be written: shape and format, no values yet."""
