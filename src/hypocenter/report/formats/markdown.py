"""Findings as Markdown, for an issue, a pull request or a wiki page."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hypocenter.nouns import Diagnosis
from hypocenter.report.outline import Entry, Outline, Recorded, outline

suffix = ".md"


def render(recorded: Recorded, diagnosis: Diagnosis, *, notes: bool = False) -> str:
    """Return one section per finding, and the summary last."""
    return "\n".join(_lines(outline(recorded, diagnosis, notes=notes))) + "\n"


def _lines(report: Outline) -> Iterator[str]:
    yield f"# Hypocenter: {escaped(report.name)}"
    yield ""
    yield f"**{escaped(report.verdict)}**"
    for entry in report.entries:
        yield ""
        yield from _entry(entry)
    for remark in report.remarks:
        yield f"\nnote: {escaped(remark)}"
    yield ""
    if report.hidden:
        yield f"{escaped(report.hidden)}  "
    yield f"{escaped(report.summary)}  "
    yield f"{report.next_label}: {_code(report.next_command)}"


def _entry(entry: Entry) -> Iterator[str]:
    yield f"## {entry.severity}[{escaped(entry.code)}]: {escaped(entry.title)}"
    yield ""
    yield f"{_code(entry.place) + ' at ' if entry.place else ''}{escaped(entry.where)}"
    if entry.excerpt:
        yield ""
        yield from _fenced(f"{entry.excerpt.line} | {entry.excerpt.text}", _carets(entry))
    elif entry.chips:
        yield ""
        yield ", ".join(escaped(chip) for chip in entry.chips)
    yield ""
    for point in entry.points:
        yield f"- **{point.label}**: {escaped(point.text)}"
    for typed in entry.commands:
        yield f"- **see**: {_code(typed)}"


def _carets(entry: Entry) -> str:
    assert entry.excerpt is not None
    gutter = " " * len(str(entry.excerpt.line))
    pad = " " * entry.excerpt.start
    width = max(entry.excerpt.stop - entry.excerpt.start, 1)
    return f"{gutter} | {pad}{'^' * width} {', '.join(entry.chips)}".rstrip()


def _fenced(*lines: str) -> Iterator[str]:
    longest = max((len(run) for line in lines for run in re.findall(r"`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    yield f"{fence}python"
    yield from lines
    yield fence


def _code(text: str) -> str:
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * (longest + 1)
    space = " " if "`" in text else ""
    return f"{fence}{space}{text}{space}{fence}"


def escaped(text: str) -> str:
    """Return the text with everything escaped that Markdown or HTML would read as markup."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"([\\`*_\[\]|~])", r"\\\1", text)
    return re.sub(r"^(\s*)(?:([-+#])|(\d+)\.(?=\s|$))", _as_text, text)


def _as_text(marker: re.Match[str]) -> str:
    """Escape what would begin a heading or an item of a list."""
    return f"{marker[1]}\\{marker[2]}" if marker[2] else f"{marker[1]}{marker[3]}\\."
