"""In: an answer and the name of a format. Out: its text, from its fields and what is said of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hypocenter import __version__
from hypocenter.json_answer import to_json
from hypocenter.report import answer
from hypocenter.report import page as report_page
from hypocenter.report.answer.outline import Outline, outline
from hypocenter.report.ci import annotation
from hypocenter.report.formats.markdown import escaped

FORMATS = ("terminal", "json", "html", "markdown", "github")
"""What every reading command can show its answer as; its screen is its own."""
_MOST = 10  # annotations of a kind that GitHub shows of one step
_ROWS = 20  # of a table, and of a list; all are in --json
_ROWS_OF_A_PAGE = 1000  # of a table, and of a list; all are in --json
_CARDS = {"notice": "healthy", "warning": "cannot-tell", "error": "error"}


def render(command: str, answer: Any, name: str) -> str:
    """Return the text that `hypocenter COMMAND --format NAME` prints, with a final newline.

    Args:
        command: the words after `hypocenter`.
        answer: a typed answer, or a mapping with its keys.
        name: one of FORMATS, but `terminal`.
    """
    if name == "json":
        return to_json(answer)
    return {"html": html, "markdown": markdown, "github": github}[name](outline(command, answer))


def github(found: Outline) -> str:
    """Return workflow commands: first one for the answer, then one for each thing in it that is not well."""
    lines = [annotation(one.level, one.text, one.title, one.file, one.line) for one in found.notices[: _MOST + 1]]
    if len(found.notices) > len(lines):
        left = f"{len(found.notices) - len(lines):,} more are in --json"
        lines.append(annotation("notice", left, f"hypocenter {found.command}"))
    return "\n".join(lines) + "\n"


def markdown(found: Outline) -> str:
    """Return the sentence, the facts as a table, then each section."""
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


def html(found: Outline) -> str:
    """Return one offline page without scripts: it loads and runs nothing."""
    from markupsafe import Markup

    from hypocenter.report.page.document import file_text, policy, shell  # loads Jinja, which no other format needs

    styles = file_text(report_page.__name__, "style.css")
    return shell(answer.__name__, "shell.html.j2").render(
        found=found, card=_CARDS[found.level], most=_ROWS_OF_A_PAGE, version=__version__, style=Markup(styles),
        policy=policy(styles, []),
    )  # fmt: skip
