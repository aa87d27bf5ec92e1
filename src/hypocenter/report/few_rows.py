"""The rows that a page is drawn from: all of a small recording; of a job of many ranks the largest over ranks.

A page shows where and when values were largest, over all ranks, and one rank in detail. So of most ranks it is enough
to keep, for each site and step, the largest magnitude and the largest counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from hypocenter.nouns import Finding, Place
from hypocenter.record.reader import RecordedRun
from hypocenter.record.schema import READINGS

MOST_ROWS = 1_000_000  # readings that are kept as they are: some 400 MB
OVER_RANKS = -1  # `rank` of a row that stands for several
_RANKS_AT_ONCE = 16
_STAGE_ORDER = 1 << 40  # orders of one pipeline stage, all before those of the next

_KEY = (
    "site", "port", "call", "phase", "op", "source_line", "step", "dtype", "replay", "literal_inf", "recompute",
    "is_norm",
)  # fmt: skip
_LARGEST = ("n", "n_nan", "n_posinf", "n_neginf", "n_hist", "max", "absmax", "sumsq")
_SMALLEST = ("order", "min", "absmin")
_TAKEN = [*((name, "max") for name in _LARGEST), *((name, "min") for name in _SMALLEST)]
_READ = tuple(dict.fromkeys((*(name for name in _KEY if name != "is_norm"), *_LARGEST, *_SMALLEST)))


def few_rows(recorded: RecordedRun, first: Finding | None) -> pa.Table:
    """Return readings to draw a page from, with `rank`; OVER_RANKS marks rows that stand for several ranks.

    Args:
        recorded: an open recording.
        first: the finding whose rank is shown in detail.
    """
    if recorded.n_rows <= MOST_ROWS:
        return recorded.table()
    shown = first.rank if first is not None and first.rank in recorded.ranks else recorded.ranks[0]
    merged = over_ranks(recorded.scan(_is_drawn, columns=_READ, needs=("digest",)), recorded.places)
    detail = by_stage(recorded.table(shown), recorded.places.get(shown))
    return pa.concat_tables([merged, *_of_scalers(recorded, shown), detail])


def over_ranks(tables: Iterable[tuple[int, pa.Table]], places: Mapping[int, Place]) -> pa.Table:
    """Return one row per site, port, operator and step: the largest of all ranks, in columns of READINGS and `rank`.

    Args:
        tables: (rank, rows).
        places: where ranks stand: sites of later pipeline stages come later.
    """
    waiting: list[pa.Table] = []  # the first stands for all before
    for rank, table in tables:
        is_norm = pc.and_(pc.equal(table["n_hist"], 0), pc.equal(table["absmax"], 0.0))
        waiting.append(_largest(by_stage(table, places.get(rank)).append_column("is_norm", is_norm)))
        if len(waiting) > _RANKS_AT_ONCE:
            waiting = [_largest(pa.concat_tables(waiting))]
    return _as_readings(_largest(pa.concat_tables(waiting)) if waiting else READINGS.empty_table())


def by_stage(table: pa.Table, place: Place | None) -> pa.Table:
    """Return the rows with orders that put later pipeline stages after earlier ones."""
    stage = place.coords.pp if place is not None else None
    if not stage:
        return table
    at = table.schema.get_field_index("order")
    return table.set_column(at, table.schema.field(at), pc.add(table["order"], stage * _STAGE_ORDER))


def _is_drawn(batch: pa.RecordBatch) -> pa.Array:
    """Tell which rows hold a tensor's values: digests say nothing of magnitudes, and the diary is of one rank."""
    of_diary = pc.and_(pc.equal(batch["phase"], "scaler"), pc.equal(batch["port"], "value"))
    return pc.and_not(pc.or_(pc.is_null(batch["digest"]), pc.greater(batch["sumsq"], 0.0)), of_diary)


def _of_scalers(recorded: RecordedRun, shown: int) -> list[pa.Table]:
    """Return the diary's rows of the two lowest ranks that have one: one to draw, one to know that there are more."""
    found: list[pa.Table] = []
    for rank, table in recorded.scan(_is_of_scaler):
        if rank != shown and table.num_rows and len(found) < 2:
            found.append(table)
    return found


def _is_of_scaler(batch: pa.RecordBatch) -> pa.Array:
    return pc.equal(batch["phase"], "scaler")


def _largest(table: pa.Table) -> pa.Table:
    grouped = table.group_by(list(_KEY), use_threads=False).aggregate(_TAKEN)
    return grouped.rename_columns(
        [name if name in _KEY else name.rpartition("_")[0] for name in grouped.column_names]
    ).select([*_READ, "is_norm"])


def _as_readings(table: pa.Table) -> pa.Table:
    """Return the rows in all columns of READINGS, with `rank`; columns that do not merge are empty."""
    n = table.num_rows
    columns = [table[f.name].cast(f.type) if f.name in _READ else _blank(f, n) for f in READINGS]
    found = pa.table(columns, schema=READINGS)
    rank = pa.repeat(pa.scalar(OVER_RANKS, pa.int32()), n)
    return found.append_column(pa.field("rank", pa.int32(), nullable=False), rank)


def _blank(field: pa.Field, n: int) -> pa.Array:
    if field.nullable:
        return pa.nulls(n, field.type)
    if pa.types.is_list(field.type):
        return pa.array([[]] * n, field.type)
    empty = "" if pa.types.is_string(field.type) else 0
    return pa.repeat(pa.scalar(empty).cast(field.type), n)
