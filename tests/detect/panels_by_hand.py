"""Panels from readings, for tests of rules over ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from hypocenter.detect.panel import JobHistory, Panel
from hypocenter.nouns import Coords, Place, Reading, StepRecord
from hypocenter.record.schema import readings_batch


def panel_of(
    rows: Iterable[tuple[int, Reading]],
    places: Mapping[int, Place],
    *,
    step: int = 0,
    history: JobHistory | None = None,
) -> Panel:
    """One step of all ranks that have a place."""
    pairs = list(rows)
    table = pa.Table.from_batches([readings_batch([row for _, row in pairs])])
    return Panel(
        step=step,
        table=table.append_column("rank", pa.array([rank for rank, _ in pairs], pa.int32())),
        records={rank: StepRecord(step=step) for rank in places},
        places=places,
        ranks=tuple(sorted(places)),
        history=history or JobHistory(),
    )


def grid_of(**sizes: int) -> dict[int, Place]:
    """Places of a job, the first axis fastest: `grid_of(tp=2, dp=2)`."""
    axes = list(sizes)
    n = 1
    for size in sizes.values():
        n *= size
    coords: list[dict[str, int]] = []
    for rank in range(n):
        at, left = {}, rank
        for axis in axes:
            at[axis], left = left % sizes[axis], left // sizes[axis]
        coords.append(at)

    def group(rank: int, axis: str) -> tuple[int, ...]:
        others = [a for a in axes if a != axis]
        return tuple(r for r in range(n) if all(coords[r][a] == coords[rank][a] for a in others))

    made: dict[int, Place] = {}
    for rank in range(n):
        groups: dict[str, Any] = {axis: group(rank, axis) for axis in axes if sizes[axis] > 1}
        made[rank] = Place(rank=rank, world_size=n, coords=Coords(**coords[rank]), groups=groups)
    return made
