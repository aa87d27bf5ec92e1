"""A few lines for a pull request: the sentence, what it rests on, the worst rows as a table."""

from __future__ import annotations

from hypocenter.compare.comparison import Comparison
from hypocenter.compare.sentences import place, power
from hypocenter.report.comparison.ranking import ranked, times

suffix = ".md"
_ROWS = 10  # of the table; all are in --json


def render(found: Comparison) -> str:
    """Return Markdown with a final newline."""
    lines = [f"**{_cell(found.sentence)}**", ""]
    lines += [f"- {_cell(reason)}" for reason in found.why]
    lines += [f"- cause: {found.cause} ({found.confidence})"] if found.cause else []
    rows = [row for row in ranked(found) if row.verdict != "equal"]
    if rows:
        lines += [
            "",
            "| verdict | step | phase | site | error | floor | times |",
            "| --- | --- | --- | --- | --- | --- | --- |",
        ]
    for row in rows[:_ROWS]:
        spot = row.pair.baseline[0]
        error = power(row.distance.relative) if row.distance is not None else "?"
        cells = (
            row.verdict, str(row.step), spot.phase, f"`{_cell(place(spot.site, spot.port))}`", error,
            power(row.floor.relative), f"{times(row):.3g}",
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    if len(rows) > _ROWS:
        lines += ["", f"{len(rows) - _ROWS:,} more rows are in `--json`"]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
