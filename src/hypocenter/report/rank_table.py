"""The ranks of a job on a screen: a grid of those with findings, and a line for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.text import Text

from hypocenter.nouns import Coords, Diagnosis
from hypocenter.record.reader import RecordedRun
from hypocenter.report import wording
from hypocenter.report.columns import aligned
from hypocenter.report.rank_grid import Cell, Mark, RankGrid, mark_of, named_ranks, rank_grid
from hypocenter.report.rank_state import RankState
from hypocenter.report.rank_states import rank_states, ranks_of_job

MOST_ON_A_GRID = 64  # of a grid on a screen; a larger job has `show --ranks` and the page
_STYLE: dict[Mark, str] = {
    "origin": "bold red", "named": "red", "bad": "yellow", "lost": "bold magenta", "behind": "cyan",
    "away": "dim", "healthy": "",
}  # fmt: skip
_SAYS: dict[Mark, str] = {
    "origin": "it began here", "named": "named by a finding", "bad": "bad", "lost": "lost",
    "behind": "behind the others", "away": "away", "healthy": "",
}  # fmt: skip


def grid_of_findings(recorded: RecordedRun, diagnosis: Diagnosis) -> RankGrid | None:
    """Return the grid where it says something: for 2 to 64 ranks and a finding that is not a note; else None."""
    if not 2 <= len(ranks_of_job(recorded)) <= MOST_ON_A_GRID or all(f.severity == "note" for f in diagnosis.findings):
        return None
    return rank_grid(rank_states(recorded, diagnosis), diagnosis)


def drawn(grid: RankGrid, width: int) -> Iterator[Text]:
    """Yield the grid line by line, then what its signs mean; nothing where the screen is too narrow."""
    lines: list[list[Text]] = []
    for block in grid.blocks:
        head = [Text(block.title, "bold"), *(Text(name) for name in block.columns)]
        if any(text.plain for text in head):
            lines.append(head)
        lines += [[Text(name), *(_drawn(cell) for cell in cells)] for name, cells in block.rows]
    if not lines:
        return
    n_columns = max(map(len, lines))
    widths = [max((line[i].cell_len for line in lines if i < len(line)), default=0) for i in range(n_columns)]
    if sum(widths) + 2 * n_columns > width:
        return
    yield Text(f"ranks: {grid.about}")
    for line in lines:
        row = Text("  ")
        for i, text in enumerate(line):
            pad = " " * (widths[i] - text.cell_len)
            row += text + pad + "  " if i == 0 else Text(pad) + text + "  "
        row.rstrip()
        yield row
    yield Text(f"  {_legend(grid)}", "dim")


def _drawn(cell: Cell | None) -> Text:
    if cell is None:
        return Text("")
    sign = {"origin": ">", "named": "!"}.get(cell.mark, "")
    return Text(f"{sign}{cell.text or '.'}", _STYLE[cell.mark])


def _legend(grid: RankGrid) -> str:
    marks = {cell.mark for block in grid.blocks for _, cells in block.rows for cell in cells if cell is not None}
    known = [
        ("a number: first bad step", any(c.step is not None for c in _cells(grid))),
        ("> it began here", "origin" in marks),
        ("! named by another finding" if "origin" in marks else "! named by a finding", "named" in marks),
        (". nothing wrong", "healthy" in marks),
    ]
    return "; ".join(words for words, is_there in known if is_there)


def _cells(grid: RankGrid) -> Iterator[Cell]:
    return (cell for block in grid.blocks for _, cells in block.rows for cell in cells if cell is not None)


def rank_lines(states: Sequence[RankState], diagnosis: Diagnosis) -> list[dict[str, Any]]:
    """Return every rank as plain values: rank, coords, host, device, first_bad_step, last_step, mark, lost."""
    origin, named = named_ranks(diagnosis)
    return [
        {
            "rank": state.rank,
            "coords": {axis: at for axis, at in asdict(state.coords).items() if at is not None},
            "host": state.host,
            "device": state.device,
            "first_bad_step": state.first_bad_step,
            "last_step": state.last_step,
            "mark": mark_of(state, origin, named),
            "lost": state.is_lost,
        }
        for state in states
    ]


def in_words(lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the ranks (as of `rank_lines`) as a table under headings."""
    rows = [
        (
            str(line["rank"]),
            wording.coords(Coords(**line["coords"])) or "-",
            " ".join(filter(None, (wording.clean(line["host"]), wording.clean(line["device"])))) or "-",
            "-" if line["first_bad_step"] is None else str(line["first_bad_step"]),
            "-" if line["last_step"] is None else str(line["last_step"]),
            ("lost, " if line["lost"] and line["mark"] == "origin" else "") + _SAYS[line["mark"]],
        )
        for line in lines
    ]
    heading: tuple[str, ...] = ("rank", "place", "host and device", "first bad step", "last step", "")
    yield from aligned([heading, *rows], right=frozenset({0, 3, 4}))
