"""The ranks of a job as a grid over their parallel layout: where and when it began. Shared by page and terminal.

A cell is a rank, or, in a job of more than MOST_CELLS ranks, a group of neighbours along one or more axes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from hypocenter.nouns import Coords, Diagnosis
from hypocenter.report import wording
from hypocenter.report.rank_state import RankState
from hypocenter.report.rank_states import RANK_LOST

MOST_CELLS = 64  # what is still read at a glance; more ranks share cells
Mark = Literal["origin", "named", "bad", "lost", "behind", "away", "healthy"]
PER_ROW = 8  # cells side by side where no axis says how many: GPUs of one host, as most have them
WORST_FIRST: tuple[Mark, ...] = ("origin", "lost", "named", "bad", "behind", "away", "healthy")

_Item = TypeVar("_Item")
_BLOCKS, _ROWS, _COLUMNS = ("pp",), ("dp",), ("cp", "tp")  # ep cuts across dp: its ranks have places of their own here
_MERGED_FIRST = ("tp", "cp", "dp", "pp")  # axes that are given up, in this order, until the cells are few
_ENDS = ("nonfinite", "crash")  # kinds of findings of which programs end
_SHORTEST_RUN = 3  # ranks in a row that are written as 4-7


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A cell of the grid: one rank, or several that share it."""

    states: tuple[RankState, ...]
    mark: Mark
    step: int | None  # at which the first of its ranks went bad
    name: str = ""  # of what its ranks share, where rows and columns do not say it

    @property
    def text(self) -> str:
        """The text in the cell: the step at which it went bad, `lost`, both (`lost 5`), or nothing."""
        return " ".join((["lost"] if self.is_lost else []) + ([] if self.step is None else [str(self.step)]))

    @property
    def is_lost(self) -> bool:
        """Whether its only rank is lost, or the worst that happened to its ranks is a loss."""
        return self.mark == "lost" or (len(self.states) == 1 and self.states[0].is_lost)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One table of the grid; a cell is None where no rank stands."""

    title: str  # "pp 1", or empty
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell | None, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGrid:
    """All blocks, and a sentence about what they show."""

    about: str
    blocks: tuple[Block, ...]
    remarks: tuple[str, ...] = ()  # what was merged or left out

    @property
    def n_cells(self) -> int:
        """The number of cells that hold a rank."""
        return sum(cell is not None for block in self.blocks for _, cells in block.rows for cell in cells)


def rank_grid(states: Sequence[RankState], diagnosis: Diagnosis) -> RankGrid | None:
    """Return the grid of a job; None for a recording of fewer than two ranks."""
    if sum(state.is_recorded for state in states) < 2:
        return None
    origin, named = named_ranks(diagnosis)

    def cell(members: Iterable[RankState], name: str = "") -> Cell:
        group = tuple(members)
        steps = [s.first_bad_step for s in group if s.first_bad_step is not None]
        marks: set[Mark] = {mark_of(state, origin, named) for state in group}
        worst = min(marks, key=WORST_FIRST.index)
        return Cell(states=group, mark=worst, step=min(steps, default=None), name=name)

    blocks, remarks = _laid_out(states, cell)
    return RankGrid(about=_about(states, origin), blocks=blocks, remarks=remarks)


def named_ranks(diagnosis: Diagnosis) -> tuple[int | None, frozenset[int]]:
    """Return the rank at which it began (None: not known), and the ranks of all findings that are not notes.

    It began at the rank of the first error, unless that is of ranks that only differ: a warning says what may be
    wrong, never where something began. Of a job that lost a rank this is the loss, unless something came before that
    makes programs end: values that are not finite, or an exception.
    """
    errors = [f for f in diagnosis.findings if f.severity == "error"]
    if any(f.cause == RANK_LOST for f in errors):
        errors = [f for f in errors if f.cause == RANK_LOST or f.kind in _ENDS]
    named = frozenset(rank for f in diagnosis.findings if f.severity != "note" for rank in f.ranks or (f.rank,))
    return (errors[0].rank if errors and not errors[0].ranks else None), named


def mark_of(state: RankState, origin: int | None, named: frozenset[int]) -> Mark:
    """Return the mark that the diagnosis gives a rank."""
    if state.is_away:
        return "away"
    if state.rank == origin:
        return "origin"
    if state.is_lost:
        return "lost"
    if state.rank in named:
        return "named"
    if state.first_bad_step is not None:
        return "bad"
    return "behind" if state.is_behind else "healthy"


def ranks_in_words(ranks: Sequence[int]) -> str:
    """Name ranks: `rank 3`, `ranks 0-7, 12`."""
    pieces: list[str] = []
    run: list[int] = []
    for rank in sorted(ranks):
        if run and rank != run[-1] + 1:
            pieces += _run_in_words(run)
            run = []
        run.append(rank)
    pieces += _run_in_words(run)
    shown = pieces if len(pieces) <= 8 else [*pieces[:8], f"and {len(pieces) - 8} more"]
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(shown)}"


def _run_in_words(run: Sequence[int]) -> Sequence[str]:
    return [f"{run[0]}-{run[-1]}"] if len(run) >= _SHORTEST_RUN else [str(rank) for rank in run]


def details(cell: Cell) -> tuple[str, ...]:
    """Return everything about a cell, a line each: rank, coordinates, host, device, first bad step, last step."""
    state, *others = cell.states
    if others:
        return tuple(_of_several(cell))
    place = " ".join(filter(None, (wording.clean(state.host), wording.clean(state.device))))
    lines = [f"rank {state.rank}", wording.coords(state.coords), place, when_bad(state), when_last(state), state.says]
    return tuple(filter(None, lines))


def when_bad(state: RankState) -> str:
    """Return `first bad step 4`, or empty."""
    return "" if state.first_bad_step is None else f"first bad step {state.first_bad_step}"


def when_last(state: RankState) -> str:
    """Say `last step 7`, and whether the rank is lost."""
    if not state.is_recorded:
        return "left no recording"
    last = "no completed step" if state.last_step is None else f"last step {state.last_step}"
    return f"{last}, lost" if state.is_lost else last


def _of_several(cell: Cell) -> Iterable[str]:
    yield ranks_in_words([s.rank for s in cell.states])
    hosts = list(dict.fromkeys(wording.clean(s.host) for s in cell.states if s.host))
    if hosts:
        yield ", ".join(hosts[:4]) + (f" and {len(hosts) - 4} more hosts" if len(hosts) > 4 else "")
    bad = [s for s in cell.states if s.first_bad_step is not None]
    if bad:
        first = min(bad, key=lambda s: (s.first_bad_step, s.rank))
        yield f"{len(bad)} of {len(cell.states)} bad, first rank {first.rank} at step {first.first_bad_step}"
    lost = [s.rank for s in cell.states if s.is_lost]
    if lost:
        yield f"lost: {ranks_in_words(lost)}"
    last = [s.last_step for s in cell.states if s.last_step is not None]
    if last:
        yield f"last step {min(last)}" + ("" if min(last) == max(last) else f" to {max(last)}")


def _about(states: Sequence[RankState], origin: int | None) -> str:
    n_bad, n_lost = sum(s.first_bad_step is not None for s in states), sum(s.is_lost for s in states)
    parts = [wording.count(len(states), "rank")]
    if n_bad:
        first = min(s.first_bad_step for s in states if s.first_bad_step is not None)
        parts.append(f"{n_bad:,} went bad, from step {first} on")
    if n_lost:
        parts.append(f"{n_lost:,} lost")
    if origin is not None:
        where = next((wording.coords(s.coords) for s in states if s.rank == origin), "")
        parts.append(f"it began at rank {origin}" + (f" ({where})" if where else ""))
    return "; ".join(parts)


def places_of(states: Sequence[RankState]) -> dict[str, dict[str, dict[str, RankState]]]:
    """Return all ranks by block, row and column: by what is told of their places, in order, else by host."""
    axes, placed = _axes(states)
    blocks, rows, columns = ([axis for axis in of if axis in axes] for of in (_BLOCKS, _ROWS, _COLUMNS))
    names = {value: _named(columns, columns, value) for value in _values(placed, columns)}
    found = {
        _named(blocks, blocks, block): {
            _named(rows, rows, row): {names[column]: one for column, (one, *_) in _by(in_row, columns).items()}
            for row, in_row in _by(inside, rows).items()
        }
        for block, inside in _by(placed, blocks).items()
    }
    known = {state.rank for state in placed}
    for state in states:
        if state.rank not in known:
            row = found.setdefault("place unknown" if known else "", {}).setdefault(wording.clean(state.host), {})
            row[str(len(row))] = state
    return found


def _laid_out(states: Sequence[RankState], cell: Callable[..., Cell]) -> tuple[tuple[Block, ...], tuple[str, ...]]:
    axes, placed = _axes(states)
    kept, merged = list(axes), list[str]()
    for axis in _MERGED_FIRST:
        if len({_key(s.coords, kept) for s in placed}) <= MOST_CELLS:
            break
        if axis in kept:
            kept.remove(axis)
            merged.append(axis)
    if not kept:
        return _by_host(states, "", cell)
    block_axes = [axis for axis in _BLOCKS if axis in kept and len(kept) > 1]  # alone it is a row like another
    blocks: list[Block] = []
    for value, inside in _by(placed, block_axes).items():
        blocks.append(_block(inside, kept, _named(block_axes, kept, value), cell))
    remarks = [f"each cell is all ranks along {' and '.join(merged)}"] if merged else []
    if len(placed) < len(states):
        ranks = {state.rank for state in placed}
        more, said = _by_host([s for s in states if s.rank not in ranks], "place unknown", cell)
        blocks, remarks = [*blocks, *more], [*remarks, *said]
    return tuple(blocks), tuple(remarks)


def _block(states: Sequence[RankState], kept: Sequence[str], title: str, cell: Callable[..., Cell]) -> Block:
    row_axes, column_axes = [a for a in _ROWS if a in kept], [a for a in _COLUMNS if a in kept]
    if len(kept) == 1 and not column_axes:
        row_axes = list(kept)
    if not column_axes:  # one after the other, several in a row
        groups = [*_by(states, row_axes).values()]
        rows = [(_span(some, row_axes), tuple(cell(group) for group in some)) for some in _chunks(groups)]
        return _wrapped(title, rows)
    columns = _values(states, column_axes)
    members: dict[tuple[tuple[int, ...], tuple[int, ...]], list[RankState]] = {}
    for state in states:
        members.setdefault((_key(state.coords, row_axes), _key(state.coords, column_axes)), []).append(state)
    rows = tuple(
        (
            _named(_ROWS, kept, row),
            tuple(cell(members[row, column]) if (row, column) in members else None for column in columns),
        )
        for row in _values(states, row_axes)
    )
    return Block(title=title, columns=tuple(_named(_COLUMNS, kept, column) for column in columns), rows=rows)


def _by_host(
    states: Sequence[RankState], title: str, cell: Callable[..., Cell]
) -> tuple[tuple[Block, ...], tuple[str, ...]]:
    """Return blocks for ranks of unknown layout: rows per host, or hosts as cells when ranks are many."""
    hosts: dict[str, list[RankState]] = {}
    for state in states:
        hosts.setdefault(wording.clean(state.host), []).append(state)
    if len(states) <= MOST_CELLS:
        rows = [
            (_run_of(name, some), tuple(cell([state]) for state in some))
            for name, group in hosts.items()
            for some in _chunks(group)
        ]
        return (_wrapped(title, rows),), ()
    cells = sorted((cell(group, name) for name, group in hosts.items()), key=_importance)
    shown, rest = cells[:MOST_CELLS], cells[MOST_CELLS:]
    remarks = ["each cell is all ranks of one host"]
    if rest:
        n_ranks = wording.count(sum(len(each.states) for each in rest), "rank")
        remarks.append(f"{wording.count(len(rest), 'host')} with {n_ranks} not shown")
    shown.sort(key=lambda each: each.states[0].rank)
    return (_wrapped(title, [("", tuple(some)) for some in _chunks(shown)]),), tuple(remarks)


def _wrapped(title: str, rows: Sequence[tuple[str, tuple[Cell, ...]]]) -> Block:
    """Return a block of rows without column headings, all of one length."""
    width = max(len(cells) for _, cells in rows)
    padded = tuple((name, (*cells, *[None] * (width - len(cells)))) for name, cells in rows)
    return Block(title=title, columns=("",) * width, rows=padded)


def _chunks(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    return (items[at : at + PER_ROW] for at in range(0, len(items), PER_ROW))


def _span(groups: Sequence[Sequence[RankState]], axes: Sequence[str]) -> str:
    """Return the first and the last place along the only axis: `dp 0-7`."""
    if not axes:
        return ""
    first, last = (getattr(group[0].coords, axes[0]) for group in (groups[0], groups[-1]))
    return f"{axes[0]} {first}" + (f"-{last}" if last != first else "")


def _run_of(host: str, states: Sequence[RankState]) -> str:
    ranks = ranks_in_words([state.rank for state in states])
    return f"{host}, {ranks}" if host else ranks


def _importance(cell: Cell) -> tuple[int, int, int]:
    step = cell.step if cell.step is not None else 1 << 62
    return WORST_FIRST.index(cell.mark), step, cell.states[0].rank


def _axes(states: Sequence[RankState]) -> tuple[list[str], Sequence[RankState]]:
    """Return axes that tell ranks apart, and the ranks with known places; nothing unless most ranks are placed."""
    every = [a for a in (*_BLOCKS, *_ROWS, *_COLUMNS) if len({getattr(s.coords, a) for s in states} - {None}) > 1]
    placed = [s for s in states if all(getattr(s.coords, a) is not None for a in every)]
    if not every or 2 * len(placed) < len(states) or len({_key(s.coords, every) for s in placed}) < len(placed):
        return [], ()
    return every, placed


def _key(coords: Coords, axes: Sequence[str]) -> tuple[int, ...]:
    return tuple([getattr(coords, axis) for axis in axes])


def _by(states: Sequence[RankState], axes: Sequence[str]) -> dict[tuple[int, ...], list[RankState]]:
    """Return the ranks of each place along these axes, in order."""
    found: dict[tuple[int, ...], list[RankState]] = {}
    for state in states:
        found.setdefault(_key(state.coords, axes), []).append(state)
    return dict(sorted(found.items()))


def _values(states: Sequence[RankState], axes: Sequence[str]) -> list[tuple[int, ...]]:
    return sorted({_key(state.coords, axes) for state in states})


def _named(all_axes: Sequence[str], kept: Sequence[str], value: tuple[int, ...]) -> str:
    return " ".join(f"{axis} {n}" for axis, n in zip([a for a in all_axes if a in kept], value, strict=True))
