"""Protocol buffers' wire format, as little of it as reading scalars needs; hostile bytes raise WireError, nothing else.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class WireError(ValueError):
    """The bytes are no valid protobuf message."""


def fields(message: bytes | memoryview) -> Iterator[tuple[int, int, int | memoryview]]:
    """Yield (number, wire type, value) of each field in order: a varint's value is an int, any other is its bytes.

    Raises:
        WireError: a length that leads outside, a varint over 64 bits, a group, a wire type that does not exist.
    """
    view = memoryview(message)
    at, end = 0, len(view)
    while at < end:
        key, at = varint(view, at)
        kind = key & 7
        if kind == VARINT:
            value, at = varint(view, at)
            yield key >> 3, kind, value
            continue
        if kind == BYTES:
            length, at = varint(view, at)
        elif kind in (FIXED32, FIXED64):
            length = 4 if kind == FIXED32 else 8
        else:
            raise WireError(f"wire type {kind}")
        if length > end - at:
            raise WireError("a field is longer than its message")
        yield key >> 3, kind, view[at : at + length]
        at += length


def varint(view: memoryview, at: int) -> tuple[int, int]:
    """Return the number that begins at a position, and the position behind it."""
    value = shift = 0
    while True:
        if at >= len(view) or shift > 63:
            raise WireError("a number without an end")
        byte = view[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at


def signed(value: int) -> int:
    """Return a varint of an int64 field as a signed number (two's complement)."""
    return value - 2**64 if value >= 2**63 else value


def floats(kind: int, value: int | memoryview) -> list[float]:
    """Return the float or double values of a field, single or packed by its wire type; empty if it is none."""
    if isinstance(value, int):
        return []
    if kind == FIXED64:
        return [struct.unpack("<d", value)[0]]
    if kind == FIXED32:
        return [struct.unpack("<f", value)[0]]
    return []


def text(value: int | memoryview) -> str:
    """Return a string field as text; broken UTF-8 becomes �."""
    return "" if isinstance(value, int) else bytes(value).decode("utf-8", "replace")
