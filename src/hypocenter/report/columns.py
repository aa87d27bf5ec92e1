"""Rows of text under headings, aligned; the last column is never cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len

from hypocenter.report import wording

_SHORTEST = 24  # columns of a name that still tells it from others


def aligned(
    rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset(), room: int | None = None, name: int = 0
) -> Iterator[str]:
    """Yield one line per row, columns two spaces apart; column numbers in `right` are flushed right.

    Args:
        room: columns of the terminal; None where there is none and nothing is cut.
        name: the column whose cells are cut in their middle when a line does not fit.
    """
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    over = sum(widths) + 2 * (len(widths) - 1) - (room or 0)
    if room is not None and over > 0:
        most = max(widths[name] - over, _SHORTEST)
        rows = [[*row[:name], wording.shortened(row[name], most), *row[name + 1 :]] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            _padded(cell, width, flush_right=i in right)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def cut_rows(n_shown: int, n_all: int, noun: str, how: str) -> Iterator[str]:
    """Yield a line that says how many rows were left out and how to see them; nothing if all are there."""
    if n_shown < n_all:
        yield f"{wording.count(n_all - n_shown, noun)} not shown, {how}"


def _padded(cell: str, width: int, *, flush_right: bool) -> str:
    space = " " * (width - cell_len(cell))
    return space + cell if flush_right else cell + space
