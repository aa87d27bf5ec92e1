"""TensorBoard event files: TFRecords of Event messages, read without TensorFlow.

Format: tensorflow/core/lib/io/record_writer.h (length, CRC-32C of it, data, CRC-32C of that; both masked), event.proto,
summary.proto, tensor.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from hypocenter.compare.curves import wire
from hypocenter.compare.curves.catalogue import Head, NotALogError, reader
from hypocenter.compare.curves.collector import Collector
from hypocenter.record.event_file import masked_crc32c

RECORD_BYTES = 64 << 20  # events of scalars have some dozens; pictures and graphs some megabytes
_CHECKED_BYTES = 1 << 20  # larger records are pictures or graphs: their data is not looked at, nor its checksum
_DT_FLOAT, _DT_DOUBLE = 1, 2


def _accepts(head: Head) -> float:
    if head.is_directory:
        return 0.7 if _event_files(head.path) else 0.0
    if len(head.start) < 12:
        return 0.0
    (crc,) = struct.unpack("<I", head.start[8:12])
    return 1.0 if masked_crc32c(head.start[:8]) == crc else 0.0


def _event_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*tfevents*")) or sorted(folder.glob("*/*tfevents*"))


@reader("tensorboard", accepts=_accepts, counts_from=None)
def read(path: Path, found: Collector) -> None:
    """An `events.out.tfevents.*` file, or a folder of them, in the order of their names (which hold the start time).

    Scalars of both writers (`simple_value`, and TF2's tensors). Each checksum is verified: behind the first record
    that is damaged or cut off nothing is read, and that is told. A record that marks a restart of the writer drops
    what the earlier one logged from that step on. Nobody says whether steps count from 0 or 1.
    """
    files = _event_files(path) if path.is_dir() else [path]
    if not files:
        raise NotALogError("no event file is in this folder", where=str(path))
    folders = {file.parent for file in files}
    if len(folders) > 1:
        found.problem(f"event files of {len(folders)} folders were read as one run")
    for file in files:
        for record in _records(file, found):
            if found.is_full:
                return
            try:
                _scalars(record, found)
            except wire.WireError as error:
                found.problem(f"an event of {file.name} is no message: {error}")


def _records(file: Path, found: Collector) -> Iterator[bytes]:
    with file.open("rb") as stream:
        while header := stream.read(12):
            at = stream.tell() - len(header)
            if len(header) < 12:
                found.problem(f"{file.name} is cut off at byte {at:,}")
                return
            length, crc = struct.unpack("<QI", header)
            if masked_crc32c(header[:8]) != crc or length > RECORD_BYTES:
                found.problem(f"{file.name} is damaged at byte {at:,}: what is behind was not read")
                return
            data = stream.read(length + 4)
            if len(data) < length + 4:
                found.problem(f"{file.name} is cut off at byte {at:,}")
                return
            if length > _CHECKED_BYTES:
                continue
            if masked_crc32c(data[:-4]) != struct.unpack("<I", data[-4:])[0]:
                found.problem(f"{file.name} is damaged at byte {at:,}: what is behind was not read")
                return
            yield data[:-4]


def _scalars(event: bytes, found: Collector) -> None:
    """Add the scalars of an Event message (fields: wall_time 1, step 2, summary 5)."""
    step, summary = 0, None
    for name, kind, value in wire.fields(event):
        if name == 2 and isinstance(value, int):
            step = wire.signed(value)
        elif name == 5 and kind == wire.BYTES:
            summary = value
    if not isinstance(summary, memoryview):
        return
    for name, kind, value in wire.fields(summary):  # Summary: value 1
        if name == 1 and kind == wire.BYTES and isinstance(value, memoryview):
            tag, number = _value(value)
            if number is not None and tag:
                found.add(step, tag, number)


def _value(message: memoryview) -> tuple[str, float | None]:
    """Return tag and number of a Summary.Value message (fields: tag 1, simple_value 2, tensor 8)."""
    tag, number = "", None
    for name, kind, value in wire.fields(message):
        if name == 1:
            tag = wire.text(value)
        elif name == 2 and kind == wire.FIXED32:
            number = wire.floats(kind, value)[0]
        elif name == 8 and kind == wire.BYTES and isinstance(value, memoryview):
            number = _tensor(value)
    return tag[:500], number


def _tensor(message: memoryview) -> float | None:
    """Return the number in a TensorProto (fields: dtype 1, tensor_content 4, float_val 5, double_val 6), or None."""
    dtype, numbers, content = 0, [], b""
    for name, _, value in wire.fields(message):
        if name == 1 and isinstance(value, int):
            dtype = value
        elif name == 4 and isinstance(value, memoryview):
            content = bytes(value)
        elif name in (5, 6) and isinstance(value, memoryview):
            numbers += _packed(value, "<f4" if name == 5 else "<f8")
    if dtype == _DT_FLOAT and len(content) == 4:
        numbers += _packed(content, "<f4")
    elif dtype == _DT_DOUBLE and len(content) == 8:
        numbers += _packed(content, "<f8")
    return numbers[0] if dtype in (_DT_FLOAT, _DT_DOUBLE) and len(numbers) == 1 else None


def _packed(data: bytes | memoryview, form: str) -> list[float]:
    size = np.dtype(form).itemsize
    if len(data) % size or len(data) > 1024:  # no scalar has as much
        return []
    return [float(one) for one in np.frombuffer(data, dtype=form)]
