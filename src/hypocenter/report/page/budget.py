"""Keeping a page below its size: whole grids while they fit, then blocks of modules, then spans of steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hypocenter.report.page.codes import encode, pack
from hypocenter.report.page.grid import Grid, Row


def fit(grid: Grid, flagged: frozenset[tuple[str, str]], limit_bytes: int) -> tuple[Grid, str, tuple[str, ...]]:
    """The grid, merged until its packed form is at most `limit_bytes`.

    Returns:
        The grid to show, its packed codes, and a sentence for everything that was merged. Rows whose (site, port) is
        flagged are never merged with others.
    """
    remarks: tuple[str, ...] = ()
    shown, packed = grid, _packed(grid, limit_bytes)
    for depth in range(_deepest(grid) - 1, 0, -1):
        if packed is not None:
            break
        shown = by_block(grid, depth, flagged)
        remarks = (
            f"{len(grid.rows):,} sites are merged into {len(shown.rows):,} rows, one per block; flagged in full",
        )
        packed = _packed(shown, limit_bytes)
    blocks = shown
    span = 1
    while packed is None and len(shown.steps) > 1:
        span *= 2
        shown = by_span(blocks, span)
        packed = _packed(shown, limit_bytes)
    if span > 1:
        remarks = (*remarks, f"{len(grid.steps):,} steps are merged by {span:,}; each cell is the largest of its span")
    return shown, packed or "", remarks


def by_block(grid: Grid, depth: int, flagged: frozenset[tuple[str, str]]) -> Grid:
    """Merge rows whose sites agree in their first `depth` name parts; the cell of a block is its largest magnitude."""
    members: dict[tuple[str, ...], list[int]] = {}
    for index, row in enumerate(grid.rows):
        alone = (row.site, row.port) in flagged
        block = (str(index),) if alone else ("", row.phase, row.dtype, *row.site.split(".")[:depth])
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


def _deepest(grid: Grid) -> int:
    return max((row.site.count(".") + 1 for row in grid.rows), default=1)


def _packed(grid: Grid, limit_bytes: int) -> str | None:
    n_names = sum(len(row.site.encode()) + len(row.port.encode()) + 40 for row in grid.rows)
    if n_names + grid.absmax.size / 1000 > limit_bytes:  # gzip never packs better than about 1000 to 1
        return None
    packed = pack(encode(grid.absmax)[0])
    return packed if len(packed) + n_names <= limit_bytes else None
