"""The innermost line of code outside the framework and Hypocenter: where an operation was written."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import linecache
import os
import sys
from pathlib import Path
from types import CodeType, FrameType

from hypocenter.nouns import Source


def _folders() -> tuple[str, ...]:
    """Return the folders of installed frameworks, found without importing them, and of Hypocenter."""
    found = [Path(__file__).resolve().parents[1]]
    for name in ("torch", "mindspore"):
        with contextlib.suppress(ValueError, ImportError):  # a stand-in that somebody put into sys.modules
            spec = importlib.util.find_spec(name)
            if spec is not None and spec.origin:
                found.append(Path(spec.origin).resolve().parent)
    return tuple(str(folder) + os.sep for folder in found)


_SKIPPED = _folders()
_SKIPPED_PARTS = (f"{os.sep}deepspeed{os.sep}runtime{os.sep}",)  # what ZeRO-3 has put in place of F.linear
_SKIPPED_FILES = frozenset({contextlib.__file__, functools.__file__})
_MADE_UP = ("<frozen", "<eval_with_key", "<hypocenter")  # names of files that there are none of
_known: dict[str, bool] = {}


def is_library(filename: str) -> bool:
    """Return whether frames of this file are skipped: a framework, Hypocenter, import machinery, generated code."""
    known = _known.get(filename)
    if known is None:
        known = filename.startswith((*_SKIPPED, *_MADE_UP)) or filename in _SKIPPED_FILES
        known = known or any(part in filename for part in _SKIPPED_PARTS)
        _known[filename] = known
    return known


def fold(filename: str) -> None:
    """Skip frames of this file from now on: an adapter asks for this for its framework and for itself."""
    _known[filename] = True


def user_frame(frame: FrameType | None, until: CodeType | None = None) -> FrameType | None:
    """Return the innermost frame that is not skipped, from `frame` outwards; none beyond one of the code `until`."""
    while frame is not None:
        code = frame.f_code
        is_skipped = _known.get(code.co_filename)
        if is_skipped is None:
            is_skipped = is_library(code.co_filename)
        if not is_skipped:
            return frame
        if code is until:
            return None
        frame = frame.f_back
    return None


def user_line() -> tuple[str, int]:
    """Return file and number of the line of the program that is running; ("", 0) if there is none."""
    frame = user_frame(sys._getframe(1))
    return ("", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def source_of(filename: str, line: int, function: str = "") -> Source:
    """Return the line of a file with its text."""
    return Source(file=filename, line=line, text=linecache.getline(filename, line).strip(), function=function)
