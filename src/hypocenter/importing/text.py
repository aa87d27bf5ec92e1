"""Text that can be written: lone surrogates, which JSON's escapes and names of files can hold, become `?`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from hypocenter.nouns import Reading, Source

_FRAME = re.compile(r"\s*File (.{1,4096}?), line (\d{1,9}), in ([^,\n]{0,200}),?\s*(.*)", re.DOTALL)
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python", "\\site-packages\\", "<frozen ", "<string>")
_TEXT_AT_MOST = 300  # characters


def writable(text: str) -> str:
    """Return the text without what UTF-8 cannot hold."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def writable_tree(value: Any) -> Any:
    """Return a JSON value with all texts and keys writable in UTF-8. Changes lists and objects in place.

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
    """Return the reading with names that can be written."""
    texts = reading.site, reading.port, reading.op, reading.module, reading.dtype
    if all(text.isascii() for text in texts):
        return reading
    site, port, op, module, dtype = map(writable, texts)
    return replace(reading, site=site, port=port, op=op, module=module, dtype=dtype)


def frame_of(text: object) -> Source | None:
    r"""Read a frame `File PATH, line N, in FUNCTION, \n CODE`; None for anything else."""
    found = _FRAME.match(text) if isinstance(text, str) else None
    if found is None:
        return None
    code = found[4].strip()
    return source(found[1].strip('"'), int(found[2]), code, found[3].strip())


def source(file: str, line: int, code: str, function: str) -> Source:
    """Return a line of code; `...` stands for code that was left out."""
    return Source(file=file, line=line, text="" if code == "..." else code[:_TEXT_AT_MOST], function=function)


def own_line(frames: Iterable[Source | None]) -> Source | None:
    """Return the innermost frame outside of installed libraries; None when there is none."""
    return next((frame for frame in frames if frame is not None and not is_library(frame.file)), None)


def is_library(file: str) -> bool:
    """Return whether a file belongs to an installed package or to Python itself."""
    return any(part in file for part in _LIBRARIES)
