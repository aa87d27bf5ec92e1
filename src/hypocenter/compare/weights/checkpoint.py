"""What a reader of checkpoints gives: named tensors that are read by parts, and what is known of the network."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hypocenter.compare.weights.elements import STORED, item_bytes
from hypocenter.errors import HypocenterError

Box = tuple[tuple[int, int], ...]
"""First and last + 1 index along every dimension."""
PART = 1 << 20  # elements read at a time: 8 MiB as float64
_WASTE = 4  # times what is needed may be read in one piece
_ONE_PIECE = 1 << 16  # elements that are read in one piece at any waste


class CheckpointError(HypocenterError):
    """A file that is no checkpoint, is damaged, or holds something that will not be executed."""

    slug = "bad-checkpoint"
    exit_code = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """All tensors of a network, by name, in the order of the files."""

    path: Path
    kind: str  # name of the reader
    tensors: dict[str, Tensor]
    settings: dict[str, int] = field(default_factory=dict[str, int])  # num_attention_heads, num_query_groups, head_dim
    notes: tuple[str, ...] = ()

    @property
    def n_bytes(self) -> int:
        """The size of all tensors together, in bytes."""
        from hypocenter.compare.weights.elements import item_bytes

        return sum(tensor.n * item_bytes(tensor.dtype) for tensor in self.tensors.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """Shape and format, and where the elements come from (`read`)."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def n(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def is_turned(self) -> bool:
        """Whether rows are far apart in the file, so that square tiles are read faster than rows."""
        return False

    def read(self, box: Box) -> NDArray[Any]:
        """Read the bits of a box, as `elements.STORED` holds them. Raises CheckpointError when the file lacks them."""
        raise NotImplementedError


def whole(shape: tuple[int, ...]) -> Box:
    """Return the box of the whole tensor: (start, stop) of each dimension."""
    return tuple((0, size) for size in shape)


def extent(box: Box) -> tuple[int, ...]:
    """Return the shape of a box."""
    return tuple(stop - start for start, stop in box)


def boxes(shape: tuple[int, ...], *, tiled: bool = False, at_most: int = PART) -> Iterator[Box]:
    """Cut a tensor into boxes of at most `at_most` elements, in row-major order; square tiles when asked for."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor(Tensor):
    """Elements of a file from a byte on, with strides in elements."""

    path: Path
    offset: int  # bytes
    strides: tuple[int, ...]
    is_big_endian: bool = False

    @property
    def is_turned(self) -> bool:
        """Whether columns, not rows, are contiguous in the file."""
        return len(self.shape) == 2 and self.strides[0] < self.strides[1]

    def read(self, box: Box) -> NDArray[Any]:
        """Read the bytes from first to last element of the box; slice by slice if its slices lie far apart."""
        try:
            with self.path.open("rb", buffering=0) as file:
                return self._read(file, box)
        except OSError as error:
            raise CheckpointError("cannot be read", where=str(self.path), why=error.strerror or str(error)) from error

    def _read(self, file: BinaryIO, box: Box) -> NDArray[Any]:
        counts = extent(box)
        native = np.dtype(STORED[self.dtype])
        if 0 in counts:
            return np.empty(counts, native)
        first = sum(start * stride for (start, _), stride in zip(box, self.strides, strict=True))
        last = first + sum((n - 1) * stride for n, stride in zip(counts, self.strides, strict=True))
        span = last - first + 1
        if span > max(_WASTE * math.prod(counts), _ONE_PIECE):
            return self._by_slices(file, box)
        size = native.itemsize
        stored = native.newbyteorder(">" if self.is_big_endian else "<")
        flat = np.frombuffer(self._bytes(file, self.offset + first * size, span * size), stored)
        laid = np.lib.stride_tricks.as_strided(flat, counts, tuple(size * stride for stride in self.strides))
        return laid.astype(native, order="C")

    def _by_slices(self, file: BinaryIO, box: Box) -> NDArray[Any]:
        dim = max((i for i, n in enumerate(extent(box)) if n > 1), key=lambda i: self.strides[i])
        start, stop = box[dim]
        slices = [self._read(file, (*box[:dim], (i, i + 1), *box[dim + 1 :])) for i in range(start, stop)]
        return np.concatenate(slices, axis=dim)

    def _bytes(self, file: BinaryIO, start: int, n: int) -> bytes:
        file.seek(start)
        parts: list[bytes] = []
        left = n
        while left:
            part = file.read(left)
            if not part:
                raise CheckpointError(
                    "a tensor is cut off", where=str(self.path), why=f"{left:,} of {n:,} bytes are missing",
                    fix="copy the file again",
                )  # fmt: skip
            parts.append(part)
            left -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of a tensor whose last dimension is contiguous."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def reach(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Return the number of elements from the first to the last one in the file, both included; 0 if empty."""
    return 0 if 0 in shape else 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))


def n_bytes(shape: tuple[int, ...], dtype: str) -> int:
    """Return the size of all elements in bytes."""
    return math.prod(shape) * item_bytes(dtype)
