"""The readings that a person asked for, rank by rank: of a job of many ranks no more than those are in memory."""

from __future__ import annotations

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions when it is imported)
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hypocenter.diagnose.logical import READS, logical_steps
from hypocenter.nouns import Place
from hypocenter.report.few_rows import by_stage
from hypocenter.report.selection import Selection, matching_sites, select

_ORDER = ("step", "microbatch", "rank", "order")


class Recorded(Protocol):
    """What this needs of an open recording (hypocenter.record.reader)."""

    ranks: list[int]

    @property
    def places(self) -> Mapping[int, Place]:
        """Where each rank stands."""
        ...

    @property
    def site_names(self) -> frozenset[str]:
        """Names of all sites."""
        ...

    def scan(
        self, where: Any = None, *, columns: Sequence[str] | None = None, needs: Sequence[str] = (),
        ranks: Sequence[int] | None = None,
    ) -> Iterator[tuple[int, pa.Table]]:  # fmt: skip
        """Readings rank by rank."""
        ...


def selected(recorded: Recorded, wanted: Selection, *, phases: Sequence[str] = ()) -> pa.Table:
    """The rows that fit, with `rank`.

    Args:
        recorded: an open recording.
        wanted: site, step and rank.
        phases: only rows of these; all when not given.

    Raises:
        UnknownNameError: the site, step or rank does not occur; names what does.
    """
    found = [table for _, table in _scanned(recorded, wanted, phases=phases)]
    return pa.concat_tables(found)


def first_values(recorded: Recorded, wanted: Selection, most: int) -> tuple[pa.Table, int]:
    """(the first `most` rows that fit, by step, micro-batch, rank and execution order; how many fit).

    Raises:
        UnknownNameError: as `selected`.
    """
    kept: pa.Table | None = None
    n_rows = 0
    keys = [(name, "ascending") for name in _ORDER]
    for _, table in _scanned(recorded, wanted):
        n_rows += table.num_rows
        joined = table if kept is None else pa.concat_tables([kept, table])
        kept = joined.take(pc.sort_indices(joined, sort_keys=keys)[:most])
    assert kept is not None  # a recording has a rank
    return kept, n_rows


def logical(recorded: Recorded, wanted: Selection) -> pa.Table:
    """The rows that fit as rows of logical tensors: copies count once, shards and pipeline stages are put together.

    Rows of one rank are given as they are, and so are those of which the placement was not recorded. Rows that hold a
    digest and no values are left out.

    Raises:
        UnknownNameError: as `selected`.
    """
    if wanted.rank is not None or len(recorded.ranks) == 1:
        return selected(recorded, wanted)
    found = _scanned(recorded, wanted, columns=(*READS, "digest"))
    tables = ((rank, by_stage(_with_values(table), recorded.places.get(rank))) for rank, table in found)
    return pa.concat_tables(list(logical_steps(tables, recorded.places)), promote_options="permissive")


def _with_values(table: pa.Table) -> pa.Table:
    """Without rows that hold nothing but a digest; the norm beside a gradient's digest is that of its own row."""
    is_digest = pc.and_(pc.is_valid(table["digest"]), pc.equal(table["n_hist"], 0))
    return table.filter(pc.invert(is_digest))


def _scanned(
    recorded: Recorded, wanted: Selection, *, phases: Sequence[str] = (), columns: Sequence[str] | None = None
) -> Iterator[tuple[int, pa.Table]]:
    ranks = _ranks(recorded, wanted.rank)
    sites = matching_sites(recorded.site_names, wanted.site) if wanted.site else None

    def where(batch: pa.RecordBatch) -> pa.Array:
        mask = np.ones(batch.num_rows, np.bool_)
        for name, values in (("step", None if wanted.step is None else [wanted.step]), ("site", sites),
                             ("phase", phases or None)):  # fmt: skip
            if values is not None:
                column = batch[name]
                mask &= pc.is_in(column, value_set=pa.array(values, column.type)).to_numpy(zero_copy_only=False)
        return pa.array(mask)

    n_rows = 0
    for rank, table in recorded.scan(where, columns=columns, needs=("step", "site", "phase"), ranks=ranks):
        n_rows += table.num_rows
        yield rank, table
    if not n_rows and wanted.step is not None:
        steps = [pc.unique(table["step"]) for _, table in recorded.scan(columns=["step"], ranks=ranks)]
        select(pa.table({"step": pa.chunked_array(steps)}), Selection(step=wanted.step))  # says which there are


def _ranks(recorded: Recorded, rank: int | None) -> Sequence[int]:
    if rank is None:
        return recorded.ranks
    select(pa.table({"rank": pa.array(recorded.ranks, pa.int64())}), Selection(rank=rank))  # says which there are
    return [rank]
