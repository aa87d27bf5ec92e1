"""Rows of text under headings, aligned; the last column is never cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len

from hypocenter.report import wording


def aligned(rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset()) -> Iterator[str]:
    """One line per row, columns two spaces apart; column numbers in `right` are flushed right."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            _padded(cell, width, flush_right=i in right)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def cut_rows(n_shown: int, n_all: int, noun: str, how: str) -> Iterator[str]:
    """A line that says how many rows were left out and how to see them; none if all are there."""
    if n_shown < n_all:
        yield f"{wording.count(n_all - n_shown, noun)} not shown, {how}"


def _padded(cell: str, width: int, *, flush_right: bool) -> str:
    space = " " * (width - cell_len(cell))
    return space + cell if flush_right else cell + space
