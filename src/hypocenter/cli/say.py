"""Talk on stderr: frames of errors and notes, coloured on a terminal, the same words without."""

from __future__ import annotations

import re
import sys
from typing import TextIO

import click

from hypocenter.report.screen import screen_of, write

_COLOURS = {"error": "red", "warning": "yellow", "note": "blue"}
_HEAD = re.compile(r"(error|warning|note)(\[[\w-]+\])?:")
_MARGIN = re.compile(r" +(-->|= (?:why|fix|hint):)")


def say(text: str, stream: TextIO | None = None) -> None:
    """Write the text and a line end to the stream, stderr when None."""
    out: TextIO = sys.stderr if stream is None else stream
    if screen_of(out).colour:
        text = "\n".join(_coloured(line) for line in text.split("\n"))
    write(out, text + "\n")


def _coloured(line: str) -> str:
    if match := _HEAD.match(line):
        return click.style(match[0], fg=_COLOURS[match[1]], bold=True) + line[match.end() :]
    if match := _MARGIN.match(line):
        return click.style(match[0], fg="cyan") + line[match.end() :]
    return line
