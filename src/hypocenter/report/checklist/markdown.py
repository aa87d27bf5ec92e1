"""A checklist as Markdown tables, for an issue or a pull request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hypocenter.checklist.checklist import Checklist, Row
from hypocenter.report import wording
from hypocenter.report.checklist import terminal
from hypocenter.report.checklist.terminal import is_shown


def render(found: Checklist, *, all_rows: bool = False, headings: Mapping[str, str] | None = None) -> str:
    """Return the sentence, a table for each group, and what was not understood."""
    return "\n".join(_lines(found, all_rows, headings or {})) + "\n"


def _lines(found: Checklist, all_rows: bool, headings: Mapping[str, str]) -> Iterator[str]:
    yield f"**{_cell(found.sentence)}**"
    yield ""
    for name, label, kinds, _ in terminal.sides(found):
        yield f"- {name}: `{wording.clean(label)}` ({', '.join(kinds)})"
    yield from (f"- note: {_cell(note)}" for note in found.notes)
    shown = [row for row in found.rows if (all_rows or is_shown(row)) and row.verdict != "not-set"]
    for group, rows in terminal.in_groups(found, shown):
        yield ""
        yield f"### {headings.get(group, group)}"
        yield ""
        yield "| | item | baseline | candidate | why |"
        yield "| --- | --- | --- | --- | --- |"
        yield from map(_row, rows)
    for name, _, _, keys in terminal.sides(found):
        if keys:
            yield ""
            yield f"Not understood, of the {name}: " + ", ".join(f"`{_cell(terminal.unknown(key))}`" for key in keys)


def _row(row: Row) -> str:
    values = [terminal.value(row.baseline_setting, row.baseline), terminal.value(row.candidate_setting, row.candidate)]
    notes = [terminal.footing(row.baseline_setting), terminal.footing(row.candidate_setting)]
    cells = [f"`{_cell(value)}`{f' ({note})' if note else ''}" for value, note in zip(values, notes, strict=True)]
    why = ". ".join(filter(None, [row.why, *(f"{remark.side}: {remark.text}" for remark in row.remarks)]))
    return f"| {row.verdict} | {_cell(row.title)} | {cells[0]} | {cells[1]} | {_cell(why)} |"


def _cell(text: str) -> str:
    return wording.sentence(text).replace("|", "\\|").replace("`", "'")
