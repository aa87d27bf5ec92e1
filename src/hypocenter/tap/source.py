"""The innermost line of code outside torch and Hypocenter: where an operation was written."""

from __future__ import annotations

import contextlib
import functools
import linecache
import os
from pathlib import Path
from types import FrameType

import torch

from hypocenter.nouns import Source

_SKIPPED = (
    str(Path(torch.__file__).resolve().parent) + os.sep,
    str(Path(__file__).resolve().parents[1]) + os.sep,
)
_SKIPPED_PARTS = (f"{os.sep}deepspeed{os.sep}runtime{os.sep}",)  # what ZeRO-3 has put in place of F.linear
_SKIPPED_FILES = frozenset({contextlib.__file__, functools.__file__})
_known: dict[str, bool] = {}


def is_library(filename: str) -> bool:
    """Whether a frame of this file is folded: torch, Hypocenter itself, the import machinery, generated code."""
    known = _known.get(filename)
    if known is None:
        known = filename.startswith((*_SKIPPED, "<frozen", "<eval_with_key")) or filename in _SKIPPED_FILES
        known = known or any(part in filename for part in _SKIPPED_PARTS)
        _known[filename] = known
    return known


def user_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame that is not folded, from `frame` outwards."""
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def source_of(filename: str, line: int, function: str = "") -> Source:
    """The line with its text."""
    return Source(file=filename, line=line, text=linecache.getline(filename, line).strip(), function=function)
