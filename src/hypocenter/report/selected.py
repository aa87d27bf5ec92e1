"""The readings that a person asked for, rank by rank: of a job of many ranks no more than those are in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hypocenter.detect.bookkeeping import holds_values, is_bookkeeping
from hypocenter.diagnose.logical import READS, logical_steps
from hypocenter.record.reader import RecordedRun
from hypocenter.report.few_rows import by_stage
from hypocenter.report.selection import Selection, matching_sites, select

_ORDER = ("step", "microbatch", "rank", "order")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The rows that fit what was asked for, and how many there were."""

    table: pa.Table
    n_rows: int  # that fit; the table may hold the first of them alone
    n_left_out: int  # rows of digests and of what Hypocenter measured for itself, which fit too but were not asked for


def selected(recorded: RecordedRun, wanted: Selection, *, phases: Sequence[str] = ()) -> pa.Table:
    """Return the rows that fit, with `rank`.

    Args:
        recorded: an open recording.
        wanted: site, step and rank.
        phases: only rows of these; all when not given.

    Raises:
        UnknownNameError: the site, step or rank does not occur; names what does.
    """
    found = [table for _, table in _scanned(recorded, wanted, phases=phases)]
    return pa.concat_tables(found)


def first_values(recorded: RecordedRun, wanted: Selection, most: int) -> Chosen:
    """Return the first `most` rows that fit, by step, micro-batch, rank and execution order.

    Raises:
        UnknownNameError: as `selected`.
    """
    kept: pa.Table | None = None
    n_rows = n_left_out = 0
    keys = [(name, "ascending") for name in _ORDER]
    for _, table in _scanned(recorded, wanted):
        shown, others = _parted(table, wanted)
        n_rows, n_left_out = n_rows + shown.num_rows, n_left_out + others.num_rows
        joined = shown if kept is None else pa.concat_tables([kept, shown])
        kept = joined.take(pc.sort_indices(joined, sort_keys=keys)[:most])
    assert kept is not None  # a recording has a rank
    return Chosen(table=kept, n_rows=n_rows, n_left_out=n_left_out)


def logical(recorded: RecordedRun, wanted: Selection) -> Chosen:
    """Return the rows of logical tensors: copies count once, shards and pipeline stages are put together.

    Rows of one rank are given as they are, and so are those of which the placement was not recorded. Digests and
    what Hypocenter measured for itself, where they are asked for, are given as they are too.

    Raises:
        UnknownNameError: as `selected`.
    """
    if wanted.rank is not None or len(recorded.ranks) == 1:
        shown, others = _parted(selected(recorded, wanted), wanted)
        return Chosen(table=shown, n_rows=shown.num_rows, n_left_out=others.num_rows)
    asides: list[pa.Table] = []

    def values() -> Iterator[tuple[int, pa.Table]]:
        for rank, table in _scanned(recorded, wanted, columns=(*READS, "digest")):
            is_value = _is_of_program(table)
            asides.append(table.filter(pc.invert(is_value)))
            yield rank, by_stage(table.filter(is_value), recorded.places.get(rank))

    tables = list(logical_steps(values(), recorded.places))
    n_aside = sum(table.num_rows for table in asides)
    shown = pa.concat_tables([*tables, *(asides if _is_whole(wanted) else [])], promote_options="permissive")
    return Chosen(table=shown, n_rows=shown.num_rows, n_left_out=0 if _is_whole(wanted) else n_aside)


def _parted(table: pa.Table, wanted: Selection) -> tuple[pa.Table, pa.Table]:
    """Return the rows to show, and those that were not asked for."""
    if _is_whole(wanted):
        return table, table.slice(0, 0)
    is_value = _is_of_program(table)
    return table.filter(is_value), table.filter(pc.invert(is_value))


def _is_whole(wanted: Selection) -> bool:
    return wanted.is_whole or bool(wanted.site)


def _is_of_program(table: pa.Table) -> pa.Array:
    return pc.and_not(holds_values(table), is_bookkeeping(table))


def _scanned(
    recorded: RecordedRun, wanted: Selection, *, phases: Sequence[str] = (), columns: Sequence[str] | None = None
) -> Iterator[tuple[int, pa.Table]]:
    ranks = _ranks(recorded, wanted.rank)
    sites = matching_sites(recorded.site_names, wanted.site) if wanted.site else None

    fits = {"step": None if wanted.step is None else [wanted.step], "site": sites, "phase": phases or None}
    n_rows = 0
    for rank, table in recorded.scan(partial(_has, fits), columns=columns, needs=tuple(fits), ranks=ranks):
        n_rows += table.num_rows
        yield rank, table
    if not n_rows and wanted.step is not None:
        steps = [pc.unique(table["step"]) for _, table in recorded.scan(columns=["step"], ranks=ranks)]
        select(pa.table({"step": pa.chunked_array(steps)}), Selection(step=wanted.step))  # says which there are


def _has(fits: Mapping[str, Sequence[Any] | None], batch: pa.RecordBatch) -> pa.Array:
    """Tell which rows have one of these values in each column; None allows any."""
    mask = np.ones(batch.num_rows, np.bool_)
    for name, values in fits.items():
        if values is not None:
            column = batch[name]
            mask &= pc.is_in(column, value_set=pa.array(values, column.type)).to_numpy(zero_copy_only=False)
    return pa.array(mask)


def _ranks(recorded: RecordedRun, rank: int | None) -> Sequence[int]:
    if rank is None:
        return recorded.ranks
    select(pa.table({"rank": pa.array(recorded.ranks, pa.int64())}), Selection(rank=rank))  # says which there are
    return [rank]
