"""One tensor in a file of its own (.pt of torch.save, .npy), found without running anything that the file holds."""

from __future__ import annotations

import warnings
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy

from hypocenter.compare.weights.archive import open_archive
from hypocenter.compare.weights.checkpoint import (
    Box,
    CheckpointError,
    StoredTensor,
    Tensor,
    boxes,
    extent,
    reach,
    row_major,
    whole,
)
from hypocenter.compare.weights.elements import STORED, is_floating, values
from hypocenter.compare.weights.unpickler import TensorRef
from hypocenter.nouns import Summary
from hypocenter.summary.merge import merge_all
from hypocenter.summary.reducers.numpy import summarize
from hypocenter.summary.sketch import Placement
from hypocenter.summary.sketch import sketch as sketch_of

_AT_MOST_DIMS = 32  # of NumPy
_EIGHT_BITS = "float8"
AT_ONCE = 1 << 24  # elements measured in one piece: 128 MiB as float64, and to the bit what the other reducers give
PART = 1 << 22  # elements of a larger tensor at a time


def open_tensor(path: Path) -> Tensor:
    """Return where the one tensor of a file lies; the values stay in the file until they are read.

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
    """Return the exact summary of all values. Raises CheckpointError when they cannot be read."""
    return merge_all(summarize(_numbers(tensor.read(box), tensor.dtype)) for box in boxes(tensor.shape))


def _numbers(bits: Any, dtype: str) -> Any:
    if dtype == "bfloat16":  # a float32 has the same exponents, so the same numbers are subnormal
        return values(bits, dtype).astype(np.float32)
    return values(bits, dtype) if dtype.startswith(_EIGHT_BITS) else bits


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was measured over all values of a tensor."""

    summary: Summary  # with a sketch, of floating-point numbers
    crc32: int  # of the bytes in row-major order, as they are stored


def measure(tensor: Tensor, *, at_once: int = AT_ONCE, sketch: bool = True) -> Measured:
    """Read all values of a tensor once and measure them.

    Args:
        tensor: where the values lie.
        at_once: elements that are held in memory; the sketch of a larger tensor is summed up from its parts.
        sketch: whether floating-point numbers are sketched.

    Raises:
        CheckpointError: the values cannot be read.
    """
    is_small = tensor.n <= at_once
    parts: list[Box] = [whole(tensor.shape)] if is_small else list(boxes(tensor.shape, at_most=min(PART, at_once)))
    crc, summaries, total = 0, list[Summary](), np.zeros(0)
    for box in parts:
        bits = np.ascontiguousarray(tensor.read(box))
        crc = zlib.crc32(bits.reshape(-1).view(np.uint8).data, crc)
        array = _numbers(bits, tensor.dtype)
        if not sketch or not is_floating(tensor.dtype):
            summaries.append(summarize(array))
            continue
        if is_small:
            summaries.append(summarize(array, sketch=True))
            continue
        summaries.append(summarize(array))
        place = Placement(shape=tensor.shape, offset=tuple(start for start, _ in box))
        part = sketch_of(array.reshape(extent(box)), place).astype(np.float64)
        total = part if not total.size else total + part
    summary = merge_all(summaries) if len(summaries) != 1 else summaries[0]
    if total.size:
        summary = replace(summary, sketch=tuple(total.astype(np.float32).tolist()))
    return Measured(summary=summary, crc32=crc)
