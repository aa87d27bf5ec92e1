"""One tensor in a file of its own (.pt of torch.save, .npy), found without running anything that the file holds."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy

from hypocenter.compare.weights.archive import open_archive
from hypocenter.compare.weights.checkpoint import CheckpointError, StoredTensor, Tensor, boxes, reach, row_major
from hypocenter.compare.weights.elements import STORED, values
from hypocenter.compare.weights.unpickler import TensorRef
from hypocenter.nouns import Summary
from hypocenter.summary.merge import merge_all
from hypocenter.summary.reducers.numpy import summarize

_AT_MOST_DIMS = 32  # of NumPy
_EIGHT_BITS = "float8"


def open_tensor(path: Path) -> Tensor:
    """Where the one tensor of a file lies; the values stay in the file until they are read.

    Raises:
        CheckpointError: it is damaged, holds something else, or claims more than it has.
    """
    try:
        if path.suffix == ".npy":
            return _npy(path)
        archive = open_archive(path)
        if not isinstance(archive.content, TensorRef):
            raise CheckpointError("no tensor", where=str(path), why="the file holds another kind of object")
        if len(archive.content.shape) > _AT_MOST_DIMS:
            raise CheckpointError("no tensor", where=str(path), why=f"{len(archive.content.shape)} dimensions")
        return archive.tensor(archive.content, path.name)
    except OSError as error:
        raise CheckpointError("cannot be read", where=str(path), why=error.strerror or str(error)) from error


def _npy(path: Path) -> StoredTensor:
    try:
        with path.open("rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            shape, is_fortran, dtype = _header(file)
            start = file.tell()
    except OSError:
        raise
    except Exception as error:  # of garbage NumPy raises many things
        why = f"{type(error).__name__}: {error}"[:200]
        raise CheckpointError("no .npy file", where=str(path), why=why) from error
    name = str(np.dtype(dtype.newbyteorder("=")).name)
    if name not in STORED or name.startswith("float8"):
        raise CheckpointError("no numbers", where=str(path), why=f"dtype {dtype}"[:100])
    if any(n < 0 for n in shape) or len(shape) > _AT_MOST_DIMS:
        raise CheckpointError("no tensor", where=str(path), why=f"shape {shape}"[:100])
    strides = tuple(reversed(row_major(tuple(reversed(shape))))) if is_fortran else row_major(shape)
    needed, held = reach(shape, strides) * dtype.itemsize, path.stat().st_size - start
    if needed > held:
        raise CheckpointError(
            "the file is cut off", where=str(path), why=f"it needs {needed:,} bytes, and has {held:,}"
        )
    return StoredTensor(
        shape=shape, dtype=name, path=path, offset=start, strides=strides, is_big_endian=dtype.byteorder == ">"
    )


def _header(file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = npy.read_magic(file)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, is_fortran, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    return tuple(int(n) for n in shape), bool(is_fortran), dtype


def summary_of_values(tensor: Tensor) -> Summary:
    """Everything about the values, exact. Raises CheckpointError when they cannot be read."""
    return merge_all(summarize(_numbers(tensor.read(box), tensor.dtype)) for box in boxes(tensor.shape))


def _numbers(bits: Any, dtype: str) -> Any:
    if dtype == "bfloat16":  # a float32 has the same exponents, so the same numbers are subnormal
        return values(bits, dtype).astype(np.float32)
    return values(bits, dtype) if dtype.startswith(_EIGHT_BITS) else bits
