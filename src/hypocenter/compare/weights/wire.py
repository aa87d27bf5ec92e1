"""Protocol buffers as they lie in a file: fields, and where their bytes are. Nothing is read that is not asked for.

Source of the encoding: protobuf.dev, "Encoding". Lengths are checked against what is there; groups, which nobody writes
today, are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_FIXED = {FIXED64: 8, FIXED32: 4}  # bytes
_MOST_BYTES = 10  # of a varint: 64 bits, seven in each
_AT_MOST_TEXT = 1 << 16  # bytes of a name
_AT_MOST_NUMBERS = 1 << 12  # of a repeated field, packed


class WireError(ValueError):
    """The bytes are no valid message; the text says where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of a message."""

    number: int
    kind: int
    value: int = 0  # of a varint
    start: int = 0  # byte in the file at which its content lies
    size: int = 0  # bytes of content


def fields(file: BinaryIO, start: int, stop: int) -> Iterator[Field]:
    """Yield the fields between two bytes of a file; others may move the file's position in between.

    Raises:
        WireError: there are no such fields.
    """
    at = start
    while at < stop:
        file.seek(at)
        head = file.read(min(2 * _MOST_BYTES, stop - at))
        key, used = _varint(head, 0, at)
        number, kind = key >> 3, key & 7
        if number == 0 or number >= 1 << 29:
            raise WireError(f"no field has the number {number} (byte {at:,})")
        if kind == VARINT:
            value, used = _varint(head, used, at)
            field = Field(number=number, kind=kind, value=value, start=at + used)
        elif kind == BYTES:
            size, used = _varint(head, used, at)
            field = Field(number=number, kind=kind, start=at + used, size=size)
        elif kind in _FIXED:
            field = Field(number=number, kind=kind, start=at + used, size=_FIXED[kind])
        else:
            raise WireError(f"no field is of kind {kind} (byte {at:,})")
        if field.start + field.size > stop:
            there = max(0, stop - field.start)
            raise WireError(f"a field at byte {at:,} is said to have {field.size:,} bytes, {there:,} are there")
        yield field
        at = field.start + field.size


def text(file: BinaryIO, field: Field) -> str:
    """Read a string field. Raises WireError when it is none, or too long for a name."""
    if field.kind != BYTES or field.size > _AT_MOST_TEXT:
        raise WireError(f"no name at byte {field.start:,}")
    file.seek(field.start)
    try:
        return file.read(field.size).decode()
    except UnicodeDecodeError as error:
        raise WireError(f"no text at byte {field.start:,}") from error


def numbers(file: BinaryIO, field: Field) -> list[int]:
    """Read the signed numbers of a repeated field, whether they are packed or not."""
    if field.kind == VARINT:
        return [_signed(field.value)]
    if field.kind != BYTES or field.size > _AT_MOST_NUMBERS:
        raise WireError(f"no numbers at byte {field.start:,}")
    file.seek(field.start)
    packed = file.read(field.size)
    found: list[int] = []
    at = 0
    while at < len(packed):
        value, at = _varint(packed, at, field.start)
        found.append(_signed(value))
    return found


def number(field: Field) -> int:
    """Return the signed number of a varint field. Raises WireError for another kind."""
    if field.kind != VARINT:
        raise WireError(f"no number at byte {field.start:,}")
    return _signed(field.value)


def varint(value: int) -> bytes:
    """Return the bytes of a non-negative number as a varint."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def head(number: int, size: int) -> bytes:
    """Return the bytes that stand before the content of a string, bytes or message."""
    return varint(number << 3 | BYTES) + varint(size)


def _varint(data: bytes, at: int, place: int) -> tuple[int, int]:
    value = 0
    for i in range(_MOST_BYTES):
        if at + i >= len(data):
            raise WireError(f"a number is cut off (byte {place:,})")
        value |= (data[at + i] & 0x7F) << (7 * i)
        if data[at + i] < 0x80:
            return value & ((1 << 64) - 1), at + i + 1
    raise WireError(f"a number has more than 64 bits (byte {place:,})")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
