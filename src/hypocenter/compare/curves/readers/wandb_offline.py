"""W&B's own files: `offline-run-*/run-*.wandb`, read without wandb.

Format: a seven-byte header (`:W&B`, 0xBEE1, version), then LevelDB's log format (blocks of 32 KiB; chunks of CRC-32,
length, type, data) whose records are `Record` messages (wandb_internal.proto).
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from hypocenter.compare.curves import wire
from hypocenter.compare.curves.catalogue import Head, NotALogError, reader
from hypocenter.compare.curves.collector import Collector, is_step, number, whole

_MAGIC = b":W&B"
_BLOCK, _HEADER = 32 << 10, 7  # bytes; LevelDB's log format
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
RECORD_BYTES = 64 << 20
_HISTORY, _ITEM, _STEP = 2, 1, 2  # numbers of fields


def _accepts(head: Head) -> float:
    if head.is_directory:
        return 0.75 if _files(head.path) else 0.0
    return 1.0 if head.start.startswith(_MAGIC) else 0.0


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.wandb"))


@reader("wandb", accepts=_accepts, counts_from=None)
def read(path: Path, found: Collector) -> None:
    """A `run-*.wandb` file, or the folder of one run that holds it.

    The history's numbers, by the step that the program logged (`train/global_step`, `trainer/global_step`,
    `global_step`, `step`) where there is one, else by W&B's own counter. Checksums are verified: a damaged chunk costs
    its record, and that is told. Nested values are named `outer/inner`.
    """
    files = _files(path) if path.is_dir() else [path]
    if len(files) != 1:
        raise NotALogError(f"{len(files)} .wandb files are in this folder", where=str(path), fix="name one of them")
    for record in _records(files[0], found):
        if found.is_full:
            return
        try:
            _history(record, found)
        except wire.WireError as error:
            found.problem(f"a record of {files[0].name} is no message: {error}")


def _records(file: Path, found: Collector) -> Iterator[bytes]:
    with file.open("rb") as stream:
        if stream.read(4) != _MAGIC:
            raise NotALogError("this is no file of W&B", where=str(file), why="it does not begin with :W&B")
        stream.seek(0)
        parts: list[bytes] | None = None
        for kind, data in _chunks(file.name, stream, found):
            if kind in (_FULL, _FIRST):
                parts = []
            if parts is None:
                continue  # its beginning was lost
            if kind == 0:
                parts = None
                continue
            parts.append(data)
            if sum(map(len, parts[-1:])) and sum(map(len, parts)) > RECORD_BYTES:
                found.problem("a record over 64 MiB was left out")
                parts = None
            elif kind in (_FULL, _LAST):
                yield b"".join(parts)
                parts = None


def _chunks(name: str, stream: object, found: Collector) -> Iterator[tuple[int, bytes]]:
    """Yield (type, data) of each chunk of a block file; type 0 where one was lost."""
    first = True
    while block := stream.read(_BLOCK):  # type: ignore[attr-defined]
        at = _HEADER if first else 0
        first = False
        while len(block) - at >= _HEADER:
            crc, length, kind = struct.unpack_from("<IHB", block, at)
            if crc == length == kind == 0:
                break  # padding
            data = block[at + _HEADER : at + _HEADER + length]
            if len(data) < length:
                found.problem(f"{name} is cut off" if len(block) < _BLOCK else f"{name} is damaged")
                yield 0, b""
                break
            if kind not in (_FULL, _FIRST, _MIDDLE, _LAST) or zlib.crc32(data, zlib.crc32(bytes([kind]))) != crc:
                found.problem(f"{name} is damaged: a record was left out")
                yield 0, b""
                break  # its length may be wrong too: go on at the next block, as LevelDB does
            yield kind, data
            at += _HEADER + length


def _history(record: bytes, found: Collector) -> None:
    for name, kind, value in wire.fields(record):
        if name == _HISTORY and kind == wire.BYTES and isinstance(value, memoryview):
            _row(value, found)


def _row(message: memoryview, found: Collector) -> None:
    """Add a HistoryRecord: item 1 (key 1, nested_key 2, typed values 3 to 8, value_json 16), step 2 (num 1)."""
    row: dict[str, float] = {}
    step: int | None = None
    for name, kind, value in wire.fields(message):
        if kind != wire.BYTES or not isinstance(value, memoryview):
            continue
        if name == _STEP:
            step = next((wire.signed(v) for n, _, v in wire.fields(value) if n == 1 and isinstance(v, int)), 0)
        elif name == _ITEM:
            row.update(_item(value))
    named = sorted((rank, key) for key in row if (rank := is_step(key)) is not None)
    at = next((whole(row[key]) for _, key in named), step)
    if at is None:
        found.problem("a row without a step was left out")
        return
    for key, value in row.items():
        if not key.startswith("_") and is_step(key) is None:
            found.add(at, key, value)


def _item(message: memoryview) -> dict[str, float]:
    keys: list[str] = []
    scalar: float | None = None
    tree: object = None
    for name, kind, value in wire.fields(message):
        if name in (1, 2):
            keys.append(wire.text(value)[:500])
        elif name == 5 and isinstance(value, int):
            scalar = float((value >> 1) ^ -(value & 1))  # zigzag
        elif name == 6 and kind == wire.FIXED64:
            scalar = wire.floats(kind, value)[0]
        elif name in (8, 16):
            tree = _json(wire.text(value))
    key = "/".join(keys)
    return {key: scalar} if scalar is not None else dict(_numbers(key, tree))


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _numbers(key: str, value: object, depth: int = 0) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict) and depth < 4:
        if "_type" not in value:  # a histogram, a picture, a table
            for inner, one in list(value.items())[:200]:
                yield from _numbers(f"{key}/{inner}"[:500], one, depth + 1)
    elif not isinstance(value, (dict, list)) and (found := number(value)) is not None:
        yield key, found
