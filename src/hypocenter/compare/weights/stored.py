"""A tensor that lies in a file: nothing is mapped, so that memory holds only the part that was asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hypocenter.compare.weights.checkpoint import CheckpointError
from hypocenter.compare.weights.elements import STORED, item_bytes
from hypocenter.compare.weights.tensor import Box, Tensor, extent

_WASTE = 4  # times what is needed may be read in one piece
_ONE_PIECE = 1 << 16  # elements that are read in one piece at any waste


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor(Tensor):
    """Elements of a file from a byte on, with strides in elements."""

    path: Path
    offset: int  # bytes
    strides: tuple[int, ...]
    is_big_endian: bool = False

    @property
    def is_turned(self) -> bool:
        """Whether columns lie one after another."""
        return len(self.shape) == 2 and self.strides[0] < self.strides[1]

    def read(self, box: Box) -> NDArray[Any]:
        """Read the bytes between first and last element of the box; or of each of its slices if they lie far apart."""
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
    """Strides, in elements, of a tensor whose last dimension lies one after another."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def reach(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Elements from the first to the last one, both included; 0 of an empty tensor."""
    return 0 if 0 in shape else 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))


def n_bytes(shape: tuple[int, ...], dtype: str) -> int:
    """Bytes of all elements."""
    return math.prod(shape) * item_bytes(dtype)
