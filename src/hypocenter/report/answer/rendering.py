"""In: an answer and the name of a format. Out: its text, from its fields and what is said of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hypocenter import __version__
from hypocenter.json_answer import plain, published, to_json
from hypocenter.report import answer, wording
from hypocenter.report import page as report_page
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


Level = Literal["error", "warning", "notice"]
GOOD = frozenset({
    "accepted", "aligned", "cured", "deterministic", "equal", "equal-after-cast", "equivalent", "fits", "found",
    "healthy", "in-range", "not-applicable", "not-own", "not-run", "not-set", "ok", "pass", "passed", "same", "skipped",
    "within-noise", "within-ulp",
})  # fmt: skip
"""Words of a status or a verdict that ask for nothing."""
_SEVERITIES: dict[str, Level] = {"error": "error", "warning": "warning", "note": "notice"}
_DOUBTFUL = ("cannot-tell", "out-of-range", "warning", "only-baseline", "only-candidate")
_HEADLINE = ("schema", "status", "sentence", "text")  # keys that stand at the top
_MANY = 12  # values of a list that stand on one line; of more the first and the last
_SHORT = 30  # characters of a text that two of stand on one line
_LONGEST = 2000  # characters of one text
_LONGEST_CELL = 200  # characters of inner values in one cell


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of things of one kind: a name for each column, and a text for each cell."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """The part of an answer that stands under one key."""

    heading: str
    about: str = ""  # what the schema says of it
    lines: tuple[str, ...] = ()
    table: Table | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Something that deserves an annotation: the answer itself, or a thing in it that is not well."""

    level: Level
    title: str
    text: str
    file: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """A whole answer, as the parts that any format writes."""

    command: str
    status: str
    level: Level
    sentence: str
    facts: tuple[tuple[str, str], ...]
    sections: tuple[Section, ...]
    notices: tuple[Notice, ...]


def outline(command: str, answer: Any) -> Outline:
    """Return an answer's parts in the order of its fields; what is empty is left out."""
    body = plain(answer)
    schema = published(type(answer)) if not isinstance(answer, Mapping) else {}
    about = {key: str(part.get("description", "")) for key, part in schema.get("properties", {}).items()}
    status = str(body.get("status", "found"))
    sentence = _text(body.get("sentence") or body.get("text") or _title(body))
    facts: list[tuple[str, str]] = []
    details: list[tuple[str, str]] = []
    sections: list[Section] = []
    for key, value in _parts(body):
        if key in _HEADLINE:
            continue
        if isinstance(value, list) and value and not _is_short(value):
            sections.append(_section(key, value, about.get(key, "")))
        elif (shown := _cell(value)) != "":
            (details if "." in key and not key.startswith("first.") else facts).append((_label(key), shown))
    if details:
        sections.append(Section(heading="details", table=Table(columns=("", ""), rows=tuple(details))))
    head = Notice(
        level=level_of(status), title=f"hypocenter {command}", text="\n".join([sentence, *_reasons(body)]),
        **_place(body.get("first") or {}),
    )  # fmt: skip
    return Outline(
        command=command, status=status, level=head.level, sentence=sentence, facts=tuple(facts),
        sections=tuple(sections), notices=(head, *_notices(body)),
    )  # fmt: skip


def level_of(word: str) -> Level:
    """Return the level (notice, warning, error) of the annotation for a status or a verdict."""
    if word in GOOD:
        return "notice"
    return "warning" if word in _DOUBTFUL else "error"


def _parts(value: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield keys and values; those of inner objects with the path of the keys that they are in."""
    for key, inner in value.items():
        if isinstance(inner, dict) and inner:
            yield from _parts(inner, f"{path}{key}.")
        elif inner not in (None, "", [], {}):
            yield f"{path}{key}", inner


def _is_short(value: Sequence[Any]) -> bool:
    return all(isinstance(one, (int, float)) or one is None for one in value) or (
        len(value) <= 2 and all(isinstance(one, str) and len(one) < _SHORT for one in value)
    )


def _section(key: str, value: Sequence[Any], about: str) -> Section:
    heading = _label(key)
    if all(isinstance(one, dict) for one in value):
        return Section(heading=heading, about=about, table=_table_of(value))
    return Section(heading=heading, about=about, lines=tuple(map(_line_of, value)))


def _table_of(rows: Sequence[Mapping[str, Any]]) -> Table:
    inner = [{key: tuple(part) for key, part in row.items() if isinstance(part, dict) and part} for row in rows]
    loose = {key for row in inner for key in row if len({other[key] for other in inner if key in other}) > 1}
    flat = [dict(_parts({k: _pairs(v) if k in loose and v else v for k, v in row.items()})) for row in rows]
    columns = tuple(dict.fromkeys(key for row in flat for key in row))
    return Table(
        columns=tuple(map(_label, columns)),
        rows=tuple(tuple(_cell(row.get(column)) for column in columns) for row in flat),
    )


def _pairs(value: Mapping[str, Any]) -> str:
    """Return inner values with their names, in one cell, where rows have different ones."""
    return wording.clean(", ".join(f"{_label(key)} {_cell(inner)}" for key, inner in _parts(value)), _LONGEST_CELL)


def _line_of(value: Any) -> str:
    if isinstance(value, list) and len(value) == 2 and isinstance(value[1], str):
        return f"{_cell(value[0])}: {_text(value[1])}"  # a heading of a manual page, and its text
    return _cell(value)


def _cell(value: Any) -> str:
    """Return a value as text on one line."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        return " ".join(filter(None, (_cell(inner) for inner in value.values())))
    if isinstance(value, list):
        if len(value) > _MANY:
            return f"{len(value):,} values, {_cell(value[0])} … {_cell(value[-1])}"
        return ", ".join(filter(None, map(_cell, value)))
    return "" if value is None else _text(value)


def _text(value: object) -> str:
    return wording.clean(" ".join(str(value).split()), _LONGEST)


def _label(key: str) -> str:
    return key.replace("_", " ").replace(".", ": ")


def _title(body: Mapping[str, Any]) -> str:
    """Return a title for an answer without a sentence: what it is about, or how many things of which kind it has."""
    named = [str(body[key]) for key in ("name", "message", "title") if body.get(key)]
    counted = [f"{len(value):,} {_label(key)}" for key, value in body.items() if isinstance(value, list)]
    return ": ".join(named) or ", ".join(counted) or str(body.get("status", "found")).replace("-", " ")


def _reasons(body: Mapping[str, Any]) -> Iterator[str]:
    why = body.get("why")
    for reason in why if isinstance(why, list) else ():
        yield f"why: {_text(reason)}"
    if body.get("cause"):
        yield f"cause: {_text(body['cause'])} ({_text(body.get('confidence') or 'possible')})"


def _notices(body: Mapping[str, Any]) -> Iterator[Notice]:
    """Yield one notice for each thing in a list of the answer whose own status or verdict is not well."""
    for value in body.values():
        for one in value if isinstance(value, list) else ():
            word = one.get("verdict") or one.get("status") if isinstance(one, dict) else None
            if not isinstance(word, str) or level_of(word) == "notice":
                continue
            level = _SEVERITIES.get(str(one.get("severity")), level_of(word))
            named = (_cell(one.get(key)) for key in ("title", "name", "site", "baseline") if one.get(key))
            said = [_cell(one.get(key)) for key in ("what", "sentence", "text", "why", "fix") if one.get(key)]
            said = said or [f"{_label(key)}: {_cell(inner)}" for key, inner in _parts(one)]
            yield Notice(level=level, title=f"{word}: {next(named, '')}", text="\n".join(said), **_place(one))


def _place(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the file and line that an object of the answer names; empty when it names none."""
    source = value.get("source")
    return {"file": _text(source["file"]), "line": source["line"]} if isinstance(source, dict) else {}
