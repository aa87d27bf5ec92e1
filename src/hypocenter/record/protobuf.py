"""Protocol buffers, the writing half: fields as bytes, for files of other tools whose packages need not be there.

The encoding is that of protobuf.dev/programming-guides/encoding; a message is the bytes of its fields, joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import pack

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types


def varint(number: int, value: int) -> bytes:
    """Return a field of an integer, enumeration or bool; negative ones as two's complement of 64 bits."""
    return _key(number, _VARINT) + _varint(value & 0xFFFFFFFFFFFFFFFF)


def double(number: int, value: float) -> bytes:
    """Return a field of float64."""
    return _key(number, _FIXED64) + pack("<d", value)


def float32(number: int, value: float) -> bytes:
    """Return a field of float32; what is too large for it becomes infinite."""
    try:
        return _key(number, _FIXED32) + pack("<f", value)
    except OverflowError:
        return _key(number, _FIXED32) + pack("<f", float("inf") if value > 0 else float("-inf"))


def doubles(number: int, values: Sequence[float]) -> bytes:
    """Return a packed field of many float64."""
    return message(number, pack(f"<{len(values)}d", *values))


def text(number: int, value: str) -> bytes:
    """Return a field of text; what UTF-8 cannot hold becomes question marks."""
    return message(number, value.encode("utf-8", "replace"))


def message(number: int, *fields: bytes) -> bytes:
    """Return a field that is a message, or bytes."""
    body = b"".join(fields)
    return _key(number, _BYTES) + _varint(len(body)) + body


def _key(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


def _varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
