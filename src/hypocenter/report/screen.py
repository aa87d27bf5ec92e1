"""How wide a stream is, whether it takes colour, and how to write to it whatever its encoding."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TextIO

PLAIN_WIDTH = 100  # columns when the stream is no terminal: what a log viewer and a code review show without scrolling
NARROWEST = 40  # columns; below this the layout stays at 40 and the terminal wraps
WIDEST = 120  # columns; longer lines are hard to read


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """Width in columns, and whether escape sequences may be written."""

    width: int = PLAIN_WIDTH
    colour: bool = False


def screen_of(stream: TextIO, environ: Mapping[str, str] | None = None) -> Screen:
    """What the stream can show. `NO_COLOR` (no-color.org) and `TERM=dumb` switch colour off; a pipe is plain."""
    environ = os.environ if environ is None else environ
    if not stream.isatty():
        return Screen()
    width = shutil.get_terminal_size((PLAIN_WIDTH, 24)).columns
    colour = not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
    return Screen(width=min(max(width, NARROWEST), WIDEST), colour=colour)


def write(stream: TextIO, text: str) -> None:
    """Write all of `text`; characters that the stream's encoding lacks become `?`, never an error."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(text.encode(encoding, "replace").decode(encoding, "replace"))
    stream.flush()


def can_draw(stream: TextIO) -> bool:
    """Whether the stream's encoding has the characters of bars and cells."""
    try:
        "▁█░▒▓✕".encode(getattr(stream, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
