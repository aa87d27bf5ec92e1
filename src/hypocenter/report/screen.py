"""How wide a stream is, whether it takes colour, and how to write to it whatever its encoding."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

PLAIN_WIDTH = 100  # columns when the stream is no terminal: what a log viewer and a code review show without scrolling
NARROWEST = 40  # columns; below this the layout stays at 40 and the terminal wraps
WIDEST = 120  # columns; longer lines are hard to read


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """Width in columns, and whether escape sequences may be written.

    `room` is all that a terminal has, for tables; None where there is no terminal, and nothing is cut.
    """

    width: int = PLAIN_WIDTH
    colour: bool = False
    room: int | None = None


def screen_of(stream: TextIO, environ: Mapping[str, str] | None = None) -> Screen:
    """Return what the stream can show. `NO_COLOR` (no-color.org) and `TERM=dumb` switch colour off; a pipe is plain."""
    environ = os.environ if environ is None else environ
    if not stream.isatty():
        return Screen()
    width = shutil.get_terminal_size((PLAIN_WIDTH, 24)).columns
    colour = not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
    return Screen(width=min(max(width, NARROWEST), WIDEST), colour=colour, room=width)


_before_writes: list[Callable[[], None]] = []


@contextmanager
def before_each_write(do: Callable[[], None]) -> Generator[None, None, None]:
    """Call `do` before anything is written inside: it takes away what is shown meanwhile."""
    _before_writes.append(do)
    try:
        yield
    finally:
        _before_writes.remove(do)


class NobodyReads(BaseException):
    """The reader of stdout has gone away, as `head` does when it has its lines: no error, and nothing is left to do."""


def write(stream: TextIO, text: str) -> None:
    """Write all of `text`; characters that the stream's encoding lacks become `?`, never an error.

    Talk on stderr that nobody hears is dropped.

    Raises:
        NobodyReads: the other end of the stream was closed.
    """
    for do in _before_writes:
        do()
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        stream.write(text.encode(encoding, "replace").decode(encoding, "replace"))
        stream.flush()
    except BrokenPipeError as error:
        send_nowhere(stream)
        if stream is not sys.stderr:
            raise NobodyReads from error


def send_nowhere(stream: TextIO) -> None:
    """Discard what the stream still holds and all that follows: Python fails at exit if it cannot be written."""
    with contextlib.suppress(OSError, ValueError):  # no file behind it
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def can_draw(stream: TextIO) -> bool:
    """Return whether the stream's encoding has the characters of bars and cells."""
    try:
        "▁█░▒▓✕".encode(getattr(stream, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
