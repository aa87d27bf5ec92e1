"""Tensors to a .ckpt file of MindSpore, part by part: memory does not grow with them."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import numpy as np

from hypocenter.compare.weights import wire
from hypocenter.compare.weights.ckpt_file import CONTENT, DIMS, FORMAT, FORMATS, TAG, TENSOR
from hypocenter.compare.weights.elements import STORED
from hypocenter.compare.weights.stored import n_bytes
from hypocenter.compare.weights.tensor import Tensor, boxes
from hypocenter.errors import HypocenterError

_NAMES = {dtype: name for name, dtype in FORMATS.items()}
PIECE = 512 << 20  # bytes of content of one value, as MindSpore cuts them: a message has less than 2 GiB


def write_ckpt(tensors: dict[str, Tensor], path: Path, *, piece: int = PIECE) -> None:
    """Write one file, that appears whole. Raises OSError, CheckpointError; HypocenterError for a format it lacks."""
    for name, tensor in tensors.items():
        _require_writable(name, tensor)
    unfinished = path.with_name(f".{path.name}.part")
    with unfinished.open("wb") as file:
        for name, tensor in tensors.items():
            _write(file, name, tensor, piece)
    unfinished.replace(path)


def _require_writable(name: str, tensor: Tensor) -> None:
    if tensor.dtype not in _NAMES:
        fix = "give --dtype, or -o a folder for safetensors"
        raise HypocenterError(f"a .ckpt of MindSpore has no {tensor.dtype}", where=name, fix=fix)
    if tensor.shape == (0,):
        raise HypocenterError("a .ckpt of MindSpore has no empty vector", where=name, why="it is loaded as a scalar")


def _write(file: BinaryIO, name: str, tensor: Tensor, piece: int) -> None:
    """One tensor, as one value or several of the same name."""
    left = n_bytes(tensor.shape, tensor.dtype)
    little = np.dtype(STORED[tensor.dtype]).newbyteorder("<")
    room = min(piece, left)
    file.write(_head(name, tensor, room))
    for box in boxes(tensor.shape):
        data = memoryview(np.ascontiguousarray(tensor.read(box)).astype(little, copy=False).tobytes())
        while data:
            if room == 0:
                room = min(piece, left)
                file.write(_head(name, tensor, room))
            part = data[:room]
            file.write(part)
            data, room, left = data[len(part) :], room - len(part), left - len(part)


def _head(name: str, tensor: Tensor, size: int) -> bytes:
    """All of a value that stands before its content."""
    dims = b"".join(wire.varint(DIMS << 3 | wire.VARINT) + wire.varint(n) for n in tensor.shape)
    dtype = _NAMES[tensor.dtype].encode()
    inner = dims + wire.head(FORMAT, len(dtype)) + dtype + wire.head(CONTENT, size)
    tag = wire.head(TAG, len(name.encode())) + name.encode()
    inner = wire.head(TENSOR, len(inner) + size) + inner
    return wire.head(1, len(tag) + len(inner) + size) + tag + inner
