"""A .ckpt file of MindSpore: one value after another, each with name, shape, format and bytes, which stay in the file.

The message, as MindSpore 2.10's own descriptor has it: Checkpoint is values (1); a value is a tag (1) and a tensor (2)
or the parts of a hash table (3); a tensor is dims (1), the name of its format (2) and content (3). A large tensor is
several values of one tag, one after another, each with the dims of the whole. At the end may stand `crc_num` and ten
bytes, big-endian: the CRC-32 of all before it.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np

from hypocenter.compare.weights import wire
from hypocenter.compare.weights.checkpoint import CheckpointError, StoredTensor, Tensor, boxes, n_bytes, row_major
from hypocenter.compare.weights.elements import STORED
from hypocenter.errors import HypocenterError

FORMATS: dict[str, str] = {
    "Float64": "float64", "Float32": "float32", "Float16": "float16", "BFloat16": "bfloat16", "Int64": "int64",
    "Int32": "int32", "Int16": "int16", "Int8": "int8", "UInt64": "uint64", "UInt32": "uint32", "UInt16": "uint16",
    "UInt8": "uint8", "Bool": "bool",
}  # fmt: skip
"""What MindSpore calls the formats that it loads."""
TAG, TENSOR, TABLE = 1, 2, 3  # fields of a value
DIMS, FORMAT, CONTENT = 1, 2, 3  # fields of a tensor
_TEXT = "str"  # format of what is no tensor
_ENCRYPTED = tuple((0x7F3A5ED8 + mode).to_bytes(4, "little") for mode in range(3))  # AES-GCM, AES-CBC, SM4-CBC
_CRC = b"crc_num"
_N_CRC = len(_CRC) + 10  # bytes of the last line
_AT_MOST_VALUES = 1 << 20
_AT_MOST_DIMS = 64
_AT_A_TIME = 1 << 22  # bytes of which the checksum is computed
_NAMES = {dtype: name for name, dtype in FORMATS.items()}
PIECE = 512 << 20  # bytes of content of one value, as MindSpore cuts them: a message has less than 2 GiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What is in a MindSpore checkpoint file."""

    tensors: dict[str, Tensor]
    others: tuple[str, ...] = ()  # names of texts and hash tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieced(StoredTensor):
    """A tensor that lies in several places of a file, cut anywhere."""

    pieces: tuple[tuple[int, int], ...] = ()  # first byte in the file, bytes

    def _bytes(self, file: BinaryIO, start: int, n: int) -> bytes:
        parts: list[bytes] = []
        before = 0
        for place, size in self.pieces:
            first, last = max(start, before), min(start + n, before + size)
            if first < last:
                parts.append(StoredTensor._bytes(self, file, place + first - before, last - first))
            before += size
        return b"".join(parts)


@dataclass(slots=True, kw_only=True)
class _Value:
    tag: str = ""
    format: str = ""
    dims: list[int] = field(default_factory=list[int])
    pieces: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    is_tensor: bool = False
    is_table: bool = False


def looks_like_ckpt(path: Path) -> bool:
    """Return whether the file begins with a value that has a name, or as an encrypted one."""
    with path.open("rb") as file:
        if file.read(4) in _ENCRYPTED:
            return True
        try:
            size = path.stat().st_size
            first = next(wire.fields(file, 0, size))
            name = next(wire.fields(file, first.start, first.start + first.size))
            tag = wire.text(file, name)
            return (first.number, name.number) == (1, TAG) and bool(tag) and tag.isprintable()
        except (wire.WireError, StopIteration):
            return False


def read_ckpt(path: Path) -> Held:
    """Find the tensors of one file, which stay where they lie.

    Raises:
        CheckpointError: it is encrypted, damaged, or another kind of file.
    """
    with path.open("rb") as file:
        if file.read(4) in _ENCRYPTED:
            raise CheckpointError(
                "the checkpoint is encrypted", where=str(path), why="it was saved with enc_key",
                fix="load it with mindspore.load_checkpoint(path, dec_key=...) and save it again without enc_key",
            )  # fmt: skip
        try:
            return _read(file, path, _end(file, path))
        except wire.WireError as error:
            why = f"read as a checkpoint of MindSpore: {error}"
            fix = "copy it again" if path.suffix == ".ckpt" else ""
            raise CheckpointError("the checkpoint is damaged", where=str(path), why=why, fix=fix) from error


def _end(file: BinaryIO, path: Path) -> int:
    """Return where the values end. Raises CheckpointError when the file has a checksum that does not fit."""
    size = path.stat().st_size
    file.seek(max(0, size - _N_CRC))
    last = file.read(_N_CRC)
    if len(last) < _N_CRC or not last.startswith(_CRC):
        return size
    file.seek(0)
    found, left = 0, size - _N_CRC
    while left:
        part = file.read(min(left, _AT_A_TIME))
        if not part:
            raise wire.WireError("it became shorter while it was read")
        found = zlib.crc32(part, found)
        left -= len(part)
    if found != int.from_bytes(last[len(_CRC) :], "big"):
        raise CheckpointError(
            "the checkpoint is damaged", where=str(path), why="its checksum is not that of its values",
            fix="copy it again",
        )  # fmt: skip
    return size - _N_CRC


def _read(file: BinaryIO, path: Path, end: int) -> Held:
    tensors: dict[str, Tensor] = {}
    others: dict[str, None] = {}
    open_value = _Value()
    for count, entry in enumerate(wire.fields(file, 0, end)):
        if entry.number != 1 or entry.kind != wire.BYTES or count >= _AT_MOST_VALUES:
            raise wire.WireError(f"field {entry.number} at byte {entry.start:,} is no value of a checkpoint")
        value = _value(file, entry)
        if value.tag == open_value.tag and value.is_tensor and open_value.is_tensor:
            if (value.dims, value.format) != (open_value.dims, open_value.format):
                raise CheckpointError("two tensors have one name", where=f"{path}: {value.tag[:200]}")
            open_value.pieces += value.pieces
            continue
        _close(open_value, path, tensors, others)
        open_value = value
    _close(open_value, path, tensors, others)
    return Held(tensors=tensors, others=tuple(others))


def _value(file: BinaryIO, entry: wire.Field) -> _Value:
    value = _Value()
    for part in wire.fields(file, entry.start, entry.start + entry.size):
        if part.number == TAG and not value.tag:
            value.tag = wire.text(file, part)
        elif part.number == TENSOR and part.kind == wire.BYTES and not value.is_tensor:
            value.is_tensor = True
            _fill(file, part, value)
        elif part.number == TABLE and part.kind == wire.BYTES:
            value.is_table = True
        else:
            raise wire.WireError(f"field {part.number} at byte {part.start:,} is nothing that a value has")
    if not value.tag or value.is_tensor == value.is_table:
        raise wire.WireError(f"a value at byte {entry.start:,} has no name or no tensor")
    return value


def _fill(file: BinaryIO, entry: wire.Field, value: _Value) -> None:
    for part in wire.fields(file, entry.start, entry.start + entry.size):
        if part.number == DIMS:
            value.dims += wire.numbers(file, part)
        elif part.number == FORMAT:
            value.format = wire.text(file, part)
        elif part.number == CONTENT and part.kind == wire.BYTES and not value.pieces:
            value.pieces.append((part.start, part.size))
        else:
            raise wire.WireError(f"field {part.number} at byte {part.start:,} is nothing that a tensor has")
    if len(value.dims) > _AT_MOST_DIMS or any(n < 0 for n in value.dims):
        raise wire.WireError(f"no shape: {value.dims[:8]} (byte {entry.start:,})")


def _close(value: _Value, path: Path, tensors: dict[str, Tensor], others: dict[str, None]) -> None:
    """Add a value that is complete to the tensors or to the others."""
    where = f"{path}: {value.tag[:200]}"
    if value.is_table or value.format == _TEXT:
        others[value.tag] = None
        return
    if not value.is_tensor:
        return
    if value.format not in FORMATS:
        raise CheckpointError(f"a tensor of unknown format {value.format[:40]!r}", where=where)
    if value.tag in tensors:
        raise CheckpointError("two tensors have one name", where=where)
    dtype, shape, size = FORMATS[value.format], tuple(value.dims), sum(n for _, n in value.pieces)
    if shape == (0,) and size:
        shape = ()  # so MindSpore before 2 wrote scalars
    if n_bytes(shape, dtype) != size:
        why = f"{list(shape)} of {dtype} are {n_bytes(shape, dtype):,} bytes, {size:,} are there"
        raise CheckpointError("a tensor is not whole", where=where, why=why[:300], fix="copy the file again")
    if len(value.pieces) <= 1:
        offset = value.pieces[0][0] if value.pieces else 0
        tensors[value.tag] = StoredTensor(shape=shape, dtype=dtype, path=path, offset=offset, strides=row_major(shape))
    else:
        tensors[value.tag] = Pieced(
            shape=shape, dtype=dtype, path=path, offset=0, strides=row_major(shape), pieces=tuple(value.pieces)
        )


def write_ckpt(tensors: dict[str, Tensor], path: Path, *, piece: int = PIECE) -> None:
    """Write one file, which appears when complete. Raises OSError, CheckpointError; HypocenterError: unknown format."""
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
    """Write one tensor, as one value or as several of the same name."""
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
    """Return the bytes of a value that stand before its content."""
    dims = b"".join(wire.varint(DIMS << 3 | wire.VARINT) + wire.varint(n) for n in tensor.shape)
    dtype = _NAMES[tensor.dtype].encode()
    inner = dims + wire.head(FORMAT, len(dtype)) + dtype + wire.head(CONTENT, size)
    tag = wire.head(TAG, len(name.encode())) + name.encode()
    inner = wire.head(TENSOR, len(inner) + size) + inner
    return wire.head(1, len(tag) + len(inner) + size) + tag + inner
