"""The line of the user's own code in a stack that another tool wrote, innermost first."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hypocenter.nouns import Source

_FRAME = re.compile(r"\s*File (.{1,4096}?), line (\d{1,9}), in ([^,\n]{0,200}),?\s*(.*)", re.DOTALL)
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python", "\\site-packages\\", "<frozen ", "<string>")
_TEXT_AT_MOST = 300  # characters


def frame_of(text: object) -> Source | None:
    """`File PATH, line N, in FUNCTION, \\n CODE`; None for anything else."""
    found = _FRAME.match(text) if isinstance(text, str) else None
    if found is None:
        return None
    code = found[4].strip()
    return source(found[1].strip('"'), int(found[2]), code, found[3].strip())


def source(file: str, line: int, code: str, function: str) -> Source:
    """A line of code; `...` stands for code that was left out."""
    return Source(file=file, line=line, text="" if code == "..." else code[:_TEXT_AT_MOST], function=function)


def own_line(frames: Iterable[Source | None]) -> Source | None:
    """The innermost frame outside of installed libraries."""
    return next((frame for frame in frames if frame is not None and not is_library(frame.file)), None)


def is_library(file: str) -> bool:
    """Whether a file belongs to an installed package or to Python itself."""
    return any(part in file for part in _LIBRARIES)
