"""Compare what should be equal along an axis of ranks: one step's digests in columns, no loop over rows."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One rank's value of what is compared."""

    rank: int
    digest: int
    sumsq: float
    n: int
    dtype: str
    module: str
    sketch: tuple[float, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Values that should be equal: an entry for each (site, port, call, group of ranks) with two ranks or more."""

    table: pa.Table
    sites: list[str]
    ports: list[str]
    site: Ints  # index into `sites`
    port: Ints
    call: Ints
    group: Ints  # index into the groups that were asked about
    differs: NDArray[np.bool_]
    starts: Ints  # of each entry's rows in `order`
    sizes: Ints
    order: Ints  # rows of `table`

    def members(self, entry: int) -> list[Member]:
        """Return the ranks of one entry with their values, in rising order."""
        rows = self.order[self.starts[entry] : self.starts[entry] + self.sizes[entry]]
        columns = ("rank", "digest", "sumsq", "n", "dtype", "module", "sketch")
        picked = self.table.select(columns).take(rows)
        values = [picked[name].to_pylist() for name in columns]
        members = [
            Member(rank=r, digest=d, sumsq=q, n=n, dtype=t, module=m, sketch=tuple(k) if k else None)
            for r, d, q, n, t, m, k in zip(*values, strict=True)
        ]
        return sorted(members, key=lambda m: m.rank)


def compare(table: pa.Table, groups: Sequence[Sequence[int]], keep: NDArray[np.bool_] | None = None) -> Compared:
    """Group rows by site, port, call and group of ranks; find the groups with more than one digest.

    Args:
        table: rows with a digest, of all ranks.
        groups: global ranks; rows of other ranks are left out.
        keep: rows to look at; all when not given.
    """
    rank, call = _numbers(table, "rank"), _numbers(table, "call")
    site, sites = codes(table, "site")
    port, ports = codes(table, "port")
    group_of = np.full(int(max([0, *rank, *(r for g in groups for r in g)])) + 1, -1, dtype=np.int64)
    for index, ranks in enumerate(groups):
        group_of[list(ranks)] = index
    group = group_of[rank] if len(rank) else rank
    rows = np.flatnonzero((group >= 0) & (keep if keep is not None else True))
    key = ((port * (int(call.max(initial=0)) + 1) + call) * max(1, len(sites)) + site) * max(1, len(groups)) + group
    order = rows[np.argsort(key[rows], kind="stable")]
    starts, sizes = _runs(key[order])
    digest = _numbers(table, "digest")[order]
    if len(starts):
        differs = np.minimum.reduceat(digest, starts) != np.maximum.reduceat(digest, starts)
    else:
        differs = np.zeros(0, dtype=np.bool_)
    several = (sizes > 1) & ~_holds_twins(key[order], rank[order], starts)
    starts, sizes, differs = starts[several], sizes[several], differs[several]
    first = order[starts]
    return Compared(
        table=table, sites=sites, ports=ports, site=site[first], port=port[first], call=call[first],
        group=group[first], differs=differs, starts=starts, sizes=sizes, order=order,
    )  # fmt: skip


def expected_equal(table: pa.Table, axis: str, sites_by_value: Collection[str] = ()) -> NDArray[np.bool_]:
    """Return which rows are replicas along the axis, by their placement.

    Args:
        sites_by_value: sites that count as replicas where the placement says nothing about the axis.
    """
    placement, texts = codes(table, "placement")
    said = [m[1] if (m := re.search(rf"(?:^| ){axis}=([^ ]+)", text)) else "" for text in texts]
    is_replica = np.array([word == "R" for word in said], dtype=np.bool_)[placement]
    if not sites_by_value:
        return is_replica
    own = ["=V" in text for text in texts]  # an expert's, whatever the axis
    is_silent = np.array([w == "" and not v for w, v in zip(said, own, strict=True)], dtype=np.bool_)[placement]
    site, sites = codes(table, "site")
    is_typed = np.array([name in sites_by_value for name in sites], dtype=np.bool_)[site]
    return is_replica | (is_silent & is_typed)


def codes(table: pa.Table, name: str) -> tuple[Ints, list[str]]:
    """Return a column of words as numbers into the list of different words, in the order of appearance."""
    import pyarrow.compute as pc

    encoded: Any = pc.fill_null(table[name], "").combine_chunks().dictionary_encode()
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), encoded.dictionary.to_pylist()


def _numbers(table: pa.Table, name: str) -> Ints:
    return table[name].to_numpy().astype(np.int64)


def _holds_twins(keys: Ints, ranks: Ints, starts: Ints) -> NDArray[np.bool_]:
    """Return the entries in which a rank has several rows: nobody knows which of them is meant."""
    if not len(starts):
        return np.zeros(0, dtype=np.bool_)
    order = np.lexsort((ranks, keys))
    same = np.concatenate([[False], (np.diff(keys[order]) == 0) & (np.diff(ranks[order]) == 0)])
    return np.add.reduceat(same, starts) > 0


def _runs(keys: Ints) -> tuple[Ints, Ints]:
    if not len(keys):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    return starts, np.diff(np.concatenate([starts, [len(keys)]]))
