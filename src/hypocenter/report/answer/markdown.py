"""An answer as Markdown, for an issue or a pull request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hypocenter.report.answer.outline import Outline
from hypocenter.report.formats.markdown import escaped

_ROWS = 20  # of a table, and of a list; all are in --json


def render(found: Outline) -> str:
    """The sentence, the facts as a table, then each section."""
    return "\n".join(_lines(found)) + "\n"


def _lines(found: Outline) -> Iterator[str]:
    yield f"# hypocenter {found.command}"
    yield ""
    yield f"**{escaped(found.sentence)}**"
    if found.facts:
        yield ""
        yield from _table(("", ""), found.facts)
    for section in found.sections:
        yield ""
        yield f"## {escaped(section.heading)}"
        yield ""
        if section.about:
            yield f"_{escaped(section.about)}_"
            yield ""
        yield from (f"- {escaped(line)}" for line in section.lines[:_ROWS])
        if section.table is not None:
            yield from _table(section.table.columns, section.table.rows[:_ROWS])
        n_left = len(section.lines) + len(section.table.rows if section.table is not None else ()) - _ROWS
        if n_left > 0:
            yield ""
            yield f"{n_left:,} more are in `--json`"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(map(escaped, columns))} |"
    yield f"|{' --- |' * len(columns)}"
    for row in rows:
        yield f"| {' | '.join(map(escaped, row))} |"
