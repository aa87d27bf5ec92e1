"""One safetensors file, mapped into memory: what it holds is known after the header, values are read when looked at."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hypocenter.compare.values.bits import Array, Raw, decoded
from hypocenter.compare.weights.checkpoint import CheckpointError, StoredTensor
from hypocenter.compare.weights.elements import STORED
from hypocenter.compare.weights.safetensors_file import read_header
from hypocenter.errors import CorruptRecordingError


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A tensor as it lies in a file, or a view of one."""

    dtype: str  # as in Reading.dtype
    raw: Raw

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions of the tensor."""
        return tuple(self.raw.shape)

    def values(self) -> Array:
        """Return all elements in float64."""
        return decoded(np.ascontiguousarray(self.raw), self.dtype).reshape(self.raw.shape)


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
        header = read_header(path)
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        tensors = {name: _stored(tensor, data) for name, tensor in header.tensors.items()}
    except CheckpointError as error:
        raise _unreadable(path, f"{error.what}: {error.why}") from error
    except (OSError, ValueError) as error:
        raise _unreadable(path, str(error)) from error
    return TensorFile(path=path, tensors=tensors, metadata=header.metadata)


def _unreadable(path: Path, why: str) -> CorruptRecordingError:
    fix = "record again, or remove the file"
    return CorruptRecordingError("stored values cannot be read", where=str(path), why=why, fix=fix)


def _stored(tensor: StoredTensor, data: mmap.mmap) -> Stored:
    if tensor.dtype.startswith("complex"):
        raise ValueError("values that are recorded are never complex")
    dtype = np.dtype(STORED[tensor.dtype]).newbyteorder("<")
    if not tensor.n:  # an empty tensor may have any other dimensions
        return Stored(dtype=tensor.dtype, raw=np.empty(tensor.shape, dtype))
    return Stored(dtype=tensor.dtype, raw=np.frombuffer(data, dtype, tensor.n, tensor.offset).reshape(tensor.shape))
