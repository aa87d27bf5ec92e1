"""Rows of a grid merged by module, and its steps by spans: what is too large to be shown in full."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hypocenter.report.page.grid import Grid, Row


def by_block(grid: Grid, depth: int, flagged: frozenset[tuple[str, str]]) -> Grid:
    """Merge rows whose sites agree in their first `depth` name parts; the cell of a block is its largest magnitude."""
    members: dict[tuple[str, ...], list[int]] = {}
    for index, row in enumerate(grid.rows):
        alone = (row.site, row.port) in flagged
        block = (str(index),) if alone else ("", row.phase, row.dtype, row.measure, *row.site.split(".")[:depth])
        members.setdefault(block, []).append(index)
    rows, cells = [], []
    for indices in members.values():
        first = grid.rows[indices[0]]
        rows.append(first if len(indices) == 1 else _block_row(first, depth, len(indices)))
        cells.append(np.fmax.reduce(grid.absmax[indices], axis=0))
    return replace(grid, rows=tuple(rows), absmax=np.stack(cells))


def by_span(grid: Grid, span: int) -> Grid:
    """Merge `span` neighbouring steps into one, named for the first; the cell is the largest magnitude."""
    starts = np.arange(0, len(grid.steps), span)
    return replace(
        grid, steps=tuple(grid.steps[s] for s in starts), absmax=np.fmax.reduceat(grid.absmax, starts, axis=1)
    )


def _block_row(first: Row, depth: int, n_sites: int) -> Row:
    block = ".".join(first.site.split(".")[:depth])
    return replace(first, site=f"{block}.*", port=f"{n_sites:,} rows", op="")


def deepest(grid: Grid) -> int:
    """Return the number of parts of the longest name."""
    return max((row.site.count(".") + 1 for row in grid.rows), default=1)
