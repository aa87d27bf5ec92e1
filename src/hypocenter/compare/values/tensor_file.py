"""One safetensors file, mapped into memory: what it holds is known after the header, values are read when looked at.

A file that does not keep to the format is refused with its reason: offsets outside of the file, shapes that do not fit
them, formats that nobody knows.
"""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hypocenter.compare.values.bits import FORMATS, Array, Raw, decoded
from hypocenter.errors import CorruptRecordingError

_MOST_HEADER_BYTES = 100 << 20  # as the reference implementation


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A tensor as it lies in a file, or a view of one."""

    dtype: str  # as in Reading.dtype
    raw: Raw

    @property
    def shape(self) -> tuple[int, ...]:
        """Its dimensions."""
        return tuple(self.raw.shape)

    def values(self) -> Array:
        """All of it in float64."""
        return decoded(np.ascontiguousarray(self.raw), self.dtype).reshape(self.raw.shape)


class _Entry(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFile:
    """A file's tensors by name, and the text that was stored with them."""

    path: Path
    tensors: dict[str, Stored]
    metadata: dict[str, str]


def open_tensor_file(path: Path) -> TensorFile:
    """Map a file and check its header.

    Raises:
        CorruptRecordingError: it cannot be read, or is no safetensors file.
    """
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            n = int.from_bytes(file.read(8), "little")
            if size < 8 or n > min(size - 8, _MOST_HEADER_BYTES):
                raise ValueError("its header is longer than the file")
            header = msgspec.json.decode(file.read(n))
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if not isinstance(header, dict):
            raise ValueError("its header is not a table")
        metadata = msgspec.convert(header.pop("__metadata__", {}), dict[str, str])
        entries = msgspec.convert(header, dict[str, _Entry])
        whole = np.frombuffer(data, np.uint8, offset=8 + n) if size > 8 + n else np.empty(0, np.uint8)
        tensors = {name: _stored(entry, whole) for name, entry in entries.items()}
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise CorruptRecordingError(
            "stored values cannot be read", where=str(path), why=str(error), fix="record again, or remove the file"
        ) from error
    return TensorFile(path=path, tensors=tensors, metadata=metadata)


def _stored(entry: _Entry, whole: np.ndarray[Any, np.dtype[np.uint8]]) -> Stored:
    if entry.dtype not in FORMATS:
        raise ValueError(f"no format is called {entry.dtype!r}")
    name, kept = FORMATS[entry.dtype]
    dtype = np.dtype(kept)
    start, stop = entry.data_offsets
    if min(entry.shape, default=0) < 0 or not 0 <= start <= stop <= len(whole):
        raise ValueError("an offset is outside of the file")
    if math.prod(entry.shape) * dtype.itemsize != stop - start:
        raise ValueError("a shape does not fit its bytes")
    part = whole[start:stop]
    if start == stop:  # an empty tensor may have any other dimensions
        return Stored(dtype=name, raw=np.empty(entry.shape, dtype))
    return Stored(dtype=name, raw=part.view(dtype).reshape(entry.shape))
