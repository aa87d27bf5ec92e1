"""Text that can be written: lone surrogates, which JSON's escapes and names of files can hold, become `?`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypocenter.nouns import Reading


def writable(text: str) -> str:
    """The text without what UTF-8 cannot hold."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def writable_tree(value: Any) -> Any:
    """A JSON value, all texts in it, keys too, without what UTF-8 cannot hold. Changes lists and objects in place.

    Raises:
        RecursionError: it is nested deeper than a decoder would have gone.
    """
    if isinstance(value, str):
        return writable(value)
    if isinstance(value, list):
        value[:] = map(writable_tree, value)
    elif isinstance(value, dict):
        whole = [(writable(key), writable_tree(inner)) for key, inner in value.items()]
        value.clear()
        value.update(whole)
    return value


def writable_reading(reading: Reading) -> Reading:
    """A reading whose names can be written."""
    texts = reading.site, reading.port, reading.op, reading.module, reading.dtype
    if all(text.isascii() for text in texts):
        return reading
    site, port, op, module, dtype = map(writable, texts)
    return replace(reading, site=site, port=port, op=op, module=module, dtype=dtype)
