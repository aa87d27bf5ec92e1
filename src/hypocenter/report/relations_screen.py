"""The screen of `hypocenter relations`: a line for each relation, and the notes."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from hypocenter.diagnose.relation_list import Answer, Asked
from hypocenter.in_words import counted
from hypocenter.report import wording
from hypocenter.report.formats.terminal import to_text, wrapped
from hypocenter.report.screen import Screen

_STYLES = {"broken": "bold yellow", "exception": "yellow", "holds": "green", "not-asked": "dim"}


def render(found: Answer, screen: Screen | None = None) -> str:
    """Return the whole text, ready to print."""
    screen = screen or Screen()
    return to_text(_lines(found, screen.width), screen)


def _lines(found: Answer, width: int) -> Iterator[Text]:
    n_broken = sum(asked.state == "broken" for asked in found.relations)
    n_held = sum(asked.state == "holds" for asked in found.relations)
    if found.status == "broken":
        yield Text.assemble(
            ("broken: ", "bold yellow"), (f"{counted(n_broken, 'relation')} of {n_broken + n_held}", "bold")
        )
    elif found.status == "healthy":
        yield Text.assemble(("healthy: ", "bold green"), (f"{counted(n_held, 'relation')} asked, all hold", "bold"))
    else:
        yield Text("no relation was asked", "bold")
    yield Text()
    indent = max([len(asked.relation) for asked in found.relations], default=0) + 13
    for asked in found.relations:
        label = Text.assemble(
            f"{wording.clean(asked.relation):{indent - 11}}", (f"{asked.state:11}", _STYLES[asked.state])
        )
        yield from wrapped(label, Text(wording.clean(_words(asked))), width, indent=indent)
    for note in found.notes:
        yield from wrapped(Text("note: "), Text(wording.clean(note)), width, indent=6)


def _words(asked: Asked) -> str:
    if asked.code is None:
        return asked.why or f"step {asked.step}"
    line = "" if asked.source is None else f", before {asked.source.file}:{asked.source.line}"
    return f"{asked.code} in step {asked.step}: {asked.why}, first in {asked.site or 'the model itself'}{line}"
