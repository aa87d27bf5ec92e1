"""A manual page on the screen."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from hypocenter.manual import Manual
from hypocenter.report.formats.terminal import to_text
from hypocenter.report.screen import Screen


def render(kind: str, name: str, page: Manual, screen: Screen) -> str:
    """`HC101 (rule): message`, then each heading with its text as it was written, then the next command."""
    return to_text(_lines(kind, name, page), screen)


def _lines(kind: str, name: str, page: Manual) -> Iterator[Text]:
    yield Text.assemble((name, "bold"), f" ({kind}): ", page.message)
    for heading, text in page.sections:
        yield Text()
        yield Text(heading, "bold")
        for line in text.splitlines():
            yield Text(f"  {line}".rstrip())
    yield Text()
    yield Text.assemble("all there is: ", ("hypocenter list", "green"))
