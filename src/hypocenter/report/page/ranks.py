"""The ranks of a job for the page: tables that need no script, whose cells tell more on hover and focus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from hypocenter.nouns import Diagnosis
from hypocenter.report import wording
from hypocenter.report.page.rank_map import rank_map
from hypocenter.report.rank_grid import (
    MOST_CELLS,
    WORST_FIRST,
    Cell,
    Mark,
    details,
    mark_of,
    named_ranks,
    rank_grid,
    ranks_in_words,
)
from hypocenter.report.rank_state import RankState

MOST_LINES = 64  # ranks listed one by one below the grid
_MEANING = {
    "origin": "it began here",
    "named": "named by a finding",
    "bad": "went bad",
    "lost": "lost",
    "behind": "behind the others",
    "away": "away: the job goes on without it",
    "healthy": "nothing wrong",
}
_LEGEND = {
    **{mark: _MEANING[mark] for mark in ("origin", "named")},
    "bad": "bad from the first bad step on",
    "later": "bad later",
    **{mark: _MEANING[mark] for mark in ("lost", "behind", "away", "healthy")},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CellView:
    """One cell: class names, the rank or how many, what it says, and the lines of its tip."""

    classes: str
    who: str
    says: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockView:
    """One table of ranks."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[CellView | None, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LineView:
    """One rank in the list."""

    mark: str
    rank: int
    place: str
    host: str
    device: str
    first_bad_step: str
    last_step: str
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksView:
    """Everything the page says about ranks."""

    about: str
    blocks: tuple[BlockView, ...]
    legend: tuple[tuple[str, str], ...]  # (class name, meaning)
    remarks: tuple[str, ...]
    lines: tuple[LineView, ...]
    title: str  # of the list
    map: Markup | None = None  # of more ranks than have a cell of their own
    marks: tuple[tuple[str, str], ...] = ()  # what its colours mean


def ranks_of(states: Sequence[RankState], diagnosis: Diagnosis) -> RanksView | None:
    """Return what to show of the ranks; None for a recording of one rank."""
    grid = rank_grid(states, diagnosis)
    if grid is None:
        return None
    first = min((s.first_bad_step for s in states if s.first_bad_step is not None), default=None)
    blocks = tuple(
        BlockView(
            title=block.title,
            columns=block.columns,
            rows=tuple(
                (name, tuple(_cell(c, first, at, len(cells)) for at, c in enumerate(cells)))
                for name, cells in block.rows
            ),
        )
        for block in grid.blocks
    )
    origin, named = named_ranks(diagnosis)
    marks: dict[int, Mark] = {state.rank: mark_of(state, origin, named) for state in states}
    lines, title = _lines(states, marks)
    used = {mark for block in blocks for _, cells in block.rows for c in cells if c for mark in c.classes.split()}
    return RanksView(
        about=grid.about,
        blocks=blocks,
        legend=tuple((mark, meaning) for mark, meaning in _LEGEND.items() if mark in used),
        remarks=grid.remarks,
        lines=lines,
        title=title,
        map=rank_map(states, marks) if len(states) > MOST_CELLS else None,
        marks=tuple((mark, meaning) for mark, meaning in _MEANING.items() if mark in set(marks.values())),
    )


def _cell(cell: Cell | None, first: int | None, column: int, n_columns: int) -> CellView | None:
    if cell is None:
        return None
    is_later = cell.step is not None and first is not None and cell.step > first
    classes = [cell.mark, *(["later"] if is_later else []), *(["from-right"] if 2 * column >= n_columns > 1 else [])]
    says = "lost" if cell.is_lost else "" if cell.step is None else f"step {cell.step}"
    who = cell.name or ranks_in_words([s.rank for s in cell.states]).partition(" ")[2]
    return CellView(classes=" ".join(classes), who=wording.shortened(who, 24), says=says, lines=details(cell))


def _lines(states: Sequence[RankState], marks: Mapping[int, Mark]) -> tuple[tuple[LineView, ...], str]:
    marked = [(marks[state.rank], state) for state in states]
    title = f"All {len(states):,} ranks"
    if len(states) > MOST_LINES:
        telling = sorted(
            (pair for pair in marked if pair[0] != "healthy"), key=lambda p: (WORST_FIRST.index(p[0]), p[1].rank)
        )
        marked = telling[:MOST_LINES]
        title = f"{len(marked):,} of {len(states):,} ranks: {len(telling):,} named, bad, lost, behind or away"
    return tuple(
        LineView(
            mark=mark,
            rank=state.rank,
            place=wording.coords(state.coords),
            host=wording.clean(state.host),
            device=wording.clean(state.device),
            first_bad_step="" if state.first_bad_step is None else str(state.first_bad_step),
            last_step="" if state.last_step is None else str(state.last_step),
            says=state.says
            or ("" if mark == "healthy" else ("lost, " if state.is_lost and mark == "origin" else "") + _MEANING[mark]),
        )
        for mark, state in marked
    ), title
