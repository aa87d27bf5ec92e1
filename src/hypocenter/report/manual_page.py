"""A manual page on the screen."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rich.text import Text

from hypocenter.manual import Manual
from hypocenter.report.formats.terminal import to_text, wrapped
from hypocenter.report.screen import Screen

_LITERAL = re.compile(r"`[^`]*`|\s.*|")  # a command, what is indented, nothing
_SOURCE_WIDTH = 90  # columns: a line of a page that is shorter, and had room for the next word, ends there


def render(kind: str, name: str, page: Manual, screen: Screen) -> str:
    """`HC101 (rule): message`, then each heading with its text, broken for the screen, then the next command."""
    return to_text(_lines(kind, name, page, screen.width), screen)


def _lines(kind: str, name: str, page: Manual, width: int) -> Iterator[Text]:
    yield from wrapped(Text.assemble((name, "bold"), f" ({kind}): "), Text(page.message), width, indent=2)
    for heading, text in page.sections:
        yield Text()
        yield Text(heading, "bold")
        for paragraph in _paragraphs(text):
            yield from (
                wrapped(Text("  "), Text(paragraph), width) if paragraph[:1].strip() else [Text(f"  {paragraph}")]
            )
    yield Text()
    yield Text.assemble("all there is: ", ("hypocenter list", "green"))


def _paragraphs(text: str) -> Iterator[str]:
    """Prose in one line each that was broken for the source; a command, an empty or an indented line stays as it is."""
    full = max(_SOURCE_WIDTH, *map(len, text.splitlines()), 0)
    lines: list[str] = []
    before = ""
    for line in text.splitlines():
        is_broken = len(before) + len(line.split(" ")[0]) + 1 > full
        if is_broken and not _LITERAL.fullmatch(line) and not _LITERAL.fullmatch(before):
            lines[-1] = f"{lines[-1]} {line}"
        else:
            lines.append(line)
        before = line
    yield from lines
