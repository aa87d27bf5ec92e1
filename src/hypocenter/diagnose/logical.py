"""Rows of all ranks merged into rows of logical tensors.

Of a tensor that is replicated over an axis one copy counts. Shards add up: counts, sums and histograms exactly,
extremes as extremes. Summands (partial sums) add as values, of which little is known from their summaries: what is
given then are bounds, and `is_bound` says so. Pipeline stages bring sites of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hypocenter.diagnose.placements import standings
from hypocenter.diagnose.rows_by_step import RowsByStep
from hypocenter.nouns import Place

Ints = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]
_Of = tuple[int, str, str]  # rank, site, "grad" or "param"

_KEY = ("step", "microbatch", "phase", "site", "port", "call", "op", "dtype", "recompute", "replay")
_COUNTS = ("n", "n_nan", "n_posinf", "n_neginf", "n_hist", "n_zero", "n_subnormal")
_OF_SAMPLE = ("n_hist", "n_zero", "n_subnormal")  # nothing is known of these in a sum of tensors
_LOWEST, _HIGHEST = ("min", "absmin"), ("max", "absmax")
_SUMS = ("sum", "sumsq")
_OF_GRAD = ("grad", "replica.grad")  # ports of gradients as the optimizer sees them
_OWN = 1 << 40  # plus a rank: a tensor of its own, a number that no rank has
READS = tuple(dict.fromkeys((*_KEY, "rank", "order", "placement", *_COUNTS, *_LOWEST, *_HIGHEST, *_SUMS)))
"""Columns that `merged` needs; with histograms also hist_first and hist, with sketches sketch."""


@dataclass(slots=True, kw_only=True)
class _Rows:
    """Rows sorted by logical tensor: each with its place among shards, summands and copies."""

    tensor: Ints  # number of the logical row
    shard: Ints
    summand: Ints
    copy: Ints
    n_shards: Ints
    n_summands: Ints
    index: Ints  # row in the table


def merged(
    table: pa.Table,
    places: Mapping[int, Place],
    *,
    histograms: bool = False,
    sketches: bool = False,
    are_sketches_of_shards: bool = False,
) -> pa.Table:
    """Merge the rows of all ranks to rows of logical tensors.

    Args:
        table: readings in columns of READS (record.schema.READINGS, and `rank`).
        places: where ranks stand.
        histograms: merge `hist_first` and `hist` as well.
        sketches: merge `sketch` as well.
        are_sketches_of_shards: sketches of shards were taken at the shard's place in the logical tensor
            (hypocenter.summary.sketch.Placement) and so add up. Those taken without it do not: they become null.

    Returns:
        One row per logical tensor in columns of `table` that merge, and
        `rank` (the lowest that holds a part of it), `n_ranks` (that were merged), `n_shards` (that were there),
        `n_expected` (that there should be), `is_complete`, `is_bound` (a sum of summands: largest values are upper
        bounds, counts of non-finite elements lower ones), `replicas_agree`, `replicas_spread` (relative, between norms
        of copies), `digest` (of what is one part) and `literal_inf` where `table` has them, `has_equal_shards` (two
        shards have one and the same norm above 0: they may be copies, as under hybrid sharding, and were counted
        twice).
        A row without placement, or of a rank whose place is not known, stays as it is.
    """
    rows = _ordered(table, places)
    copies_start = _starts(rows.tensor, rows.shard, rows.summand)
    firsts = np.flatnonzero(copies_start)
    agree = _agreement(table, rows, firsts)
    counted = _pick(rows, firsts)
    shards = np.flatnonzero(_starts(counted.tensor, counted.shard))
    is_sum = _lengths(shards, len(firsts)) > 1
    values = _added(_columns(table, counted.index), shards, is_sum)
    of_shard = _pick(counted, shards)
    tensors = np.flatnonzero(_starts(of_shard.tensor))
    n_found = _lengths(tensors, len(shards))
    out = _joined(values, tensors)
    found: dict[str, Any] = {name: table[name].take(of_shard.index[tensors]) for name in _KEY}
    found |= {name: _arrow(name, column) for name, column in out.items()}
    found["order"] = pa.array(np.minimum.reduceat(table["order"].to_numpy()[of_shard.index], tensors))
    found["rank"] = pa.array(np.minimum.reduceat(table["rank"].to_numpy()[of_shard.index], tensors), pa.int32())
    found["placement"] = table["placement"].take(of_shard.index[tensors])
    row_starts = np.flatnonzero(_starts(rows.tensor))
    n_summands = np.add.reduceat(_lengths(shards, len(firsts)), tensors)
    expected = of_shard.n_shards[tensors] * of_shard.n_summands[tensors]
    found["n_ranks"] = pa.array(_lengths(row_starts, len(rows.tensor)))
    found["n_shards"] = pa.array(n_found)
    found["n_expected"] = pa.array(of_shard.n_shards[tensors])
    found["is_complete"] = pa.array(n_summands == expected)
    found["is_bound"] = pa.array(np.logical_or.reduceat(is_sum | (of_shard.n_summands > 1), tensors))
    found["replicas_agree"] = pa.array(np.logical_and.reduceat(agree, row_starts))
    found["replicas_spread"] = pa.array(_spread(table, rows, firsts, row_starts))
    found["has_equal_shards"] = pa.array(_equal_shards(values["sumsq"], _group_of(of_shard.tensor), len(tensors)))
    if "digest" in table.column_names:
        whole = pa.array(n_summands == 1)  # of one part the digest is that of the tensor
        digest = table["digest"].take(of_shard.index[tensors]).combine_chunks()
        found["digest"] = pc.if_else(whole, digest, pa.nulls(len(digest), digest.type))
    if "lacks" in table.column_names:
        found["lacks"] = table["lacks"].take(of_shard.index[tensors])
    if "literal_inf" in table.column_names:
        flags = table["literal_inf"].to_numpy()[rows.index]
        found["literal_inf"] = pa.array(np.logical_or.reduceat(flags, row_starts))
    if histograms:
        found |= _histograms(table, counted.index, firsts_of=_group_of(counted.tensor), is_bound=found["is_bound"])
    if sketches:
        found["sketch"] = _sketches(table, counted.index, _group_of(counted.tensor), n_found, are_sketches_of_shards)
    return pa.table(found)


def _ordered(table: pa.Table, places: Mapping[int, Place]) -> _Rows:
    """Return the rows sorted by logical tensor, shard, summand and copy."""
    rank = table["rank"].to_numpy()
    standing = _standing_columns(table, rank, places)
    codes = _codes(table, _KEY)
    # What a rank wrote twice under one key (two optimizers) is two tensors: number the repeats.
    by_rank = np.lexsort((table["order"].to_numpy(), rank, codes))
    run_starts = np.flatnonzero(_starts(codes[by_rank], rank[by_rank]))
    repeat = np.empty(len(codes), np.int64)
    repeat[by_rank] = np.arange(len(codes)) - np.repeat(run_starts, _lengths(run_starts, len(codes)))
    tensor = _numbered(codes, repeat, standing["tensor"])
    index = np.lexsort((rank, standing["copy"], standing["summand"], standing["shard"], tensor))
    return _Rows(
        tensor=tensor[index],
        shard=standing["shard"][index],
        summand=standing["summand"][index],
        copy=standing["copy"][index],
        n_shards=standing["n_shards"][index],
        n_summands=standing["n_summands"][index],
        index=index,
    )


def _standing_columns(table: pa.Table, rank: npt.NDArray[Any], places: Mapping[int, Place]) -> dict[str, Ints]:
    """Return per row what its rank holds of the tensor; without placement or place a tensor of its own."""
    texts = pc.dictionary_encode(pc.fill_null(table["placement"], "").combine_chunks())
    ranks, rank_code = np.unique(rank, return_inverse=True)
    names = ("tensor", "shard", "summand", "copy", "n_shards", "n_summands")
    size = (len(texts.dictionary), len(ranks))
    known = {name: np.full(size, int(name.startswith("n_")), np.int64) for name in names}
    known["tensor"][:] = _OWN + ranks.astype(np.int64)
    for i, text in enumerate(texts.dictionary.to_pylist()):
        if not text:
            continue
        found = standings(text, places, ranks.tolist())
        for j, one in enumerate(ranks.tolist()):
            if one in found:
                for name in names:
                    known[name][i, j] = getattr(found[one], name)
    code = texts.indices.to_numpy()
    return {name: known[name][code, rank_code] for name in names}


def _columns(table: pa.Table, index: Ints) -> dict[str, Reals]:
    """Return the numbers of the rows as float64 (counts are below 2**53); what is not known is NaN."""
    names = (*_COUNTS, *_LOWEST, *_HIGHEST, *_SUMS)
    return {n: pc.fill_null(table[n].cast(pa.float64()), math.nan).to_numpy()[index] for n in names}


def _added(values: dict[str, Reals], starts: Ints, is_sum: npt.NDArray[np.bool_]) -> dict[str, Reals]:
    """Add summands as values: the result has one row per shard."""
    out: dict[str, Reals] = {}
    for name, column in values.items():
        if name == "n" or not is_sum.any():
            out[name] = column[starts]
        elif name in _OF_SAMPLE:
            out[name] = np.where(is_sum, 0.0, column[starts])
        elif name in _COUNTS:
            out[name] = np.maximum.reduceat(column, starts)
        elif name == "absmin":
            out[name] = np.where(is_sum, np.nan, column[starts])
        elif name == "sumsq":  # the norm of a sum is at most the sum of the norms
            out[name] = np.where(is_sum, np.add.reduceat(np.sqrt(column), starts) ** 2, column[starts])
        else:
            out[name] = np.add.reduceat(column, starts)
    return out


def _joined(values: dict[str, Reals], starts: Ints) -> dict[str, Reals]:
    """Put shards together: the result has one row per tensor."""
    how: dict[str, np.ufunc] = dict.fromkeys(values, np.add)
    how |= dict.fromkeys(_LOWEST, np.fmin) | dict.fromkeys(_HIGHEST, np.fmax)
    return {name: how[name].reduceat(column, starts) for name, column in values.items()}


def _agreement(table: pa.Table, rows: _Rows, firsts: Ints) -> npt.NDArray[np.bool_]:
    """Return per row whether it equals the copy of its shard that counts, in sum of squares and digest."""
    first_of = np.repeat(rows.index[firsts], _lengths(firsts, len(rows.index)))
    same = np.ones(len(first_of), np.bool_)
    for name in ("sumsq", "n_nan", *(("digest",) if "digest" in table.column_names else ())):
        column = pc.fill_null(table[name], 0).to_numpy()
        same &= column[rows.index] == column[first_of]
    return same


def _spread(table: pa.Table, rows: _Rows, firsts: Ints, starts: Ints) -> Reals:
    """Return per tensor how far norms of copies are from that of the copy that counts, relative to it."""
    sumsq = pc.fill_null(table["sumsq"], 0).to_numpy()
    size = np.sqrt(sumsq[rows.index])
    first = np.sqrt(sumsq[np.repeat(rows.index[firsts], _lengths(firsts, len(rows.index)))])
    gap = np.abs(size - first)
    with np.errstate(all="ignore"):
        relative = np.where(gap == 0, 0.0, gap / first)
    return np.maximum.reduceat(relative, starts)


def _equal_shards(sumsq: Reals, group: Ints, n_groups: int) -> npt.NDArray[np.bool_]:
    """Return per tensor whether two of its shards have one and the same norm above 0."""
    order = np.lexsort((sumsq, group))
    size, of = sumsq[order], group[order]
    is_equal = (size[1:] == size[:-1]) & (of[1:] == of[:-1]) & (size[1:] > 0)
    return np.bincount(of[1:][is_equal], minlength=n_groups) > 0


def _pick(rows: _Rows, at: Ints) -> _Rows:
    return _Rows(
        tensor=rows.tensor[at],
        shard=rows.shard[at],
        summand=rows.summand[at],
        copy=rows.copy[at],
        n_shards=rows.n_shards[at],
        n_summands=rows.n_summands[at],
        index=rows.index[at],
    )


def _arrow(name: str, column: Reals) -> pa.Array:
    if name in _COUNTS:
        return pa.array(column.astype(np.int64))
    return pa.array(column, pa.float64(), from_pandas=True)  # NaN is null


def _codes(table: pa.Table, names: Sequence[str]) -> Ints:
    """Return a number for each row's key."""
    codes = np.zeros(table.num_rows, np.int64)
    for name in names:
        encoded = pc.dictionary_encode(table[name].combine_chunks(), null_encoding="encode")
        codes = _numbered(codes, encoded.indices.to_numpy())
    return codes


def _numbered(*columns: npt.NDArray[Any]) -> Ints:
    """Return a number for each row's combination of values."""
    codes = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values, inverse = np.unique(column, return_inverse=True)
        codes = np.unique(codes * len(values) + inverse, return_inverse=True)[1] if len(values) > 1 else codes
    return codes


def _starts(*columns: Ints) -> npt.NDArray[np.bool_]:
    """Return where, in sorted rows, another combination begins."""
    changes = np.zeros(len(columns[0]), np.bool_)
    changes[:1] = True
    for column in columns:
        changes[1:] |= column[1:] != column[:-1]
    return changes


def _lengths(starts: Ints, n: int) -> Ints:
    """Return how many rows each run has, of `n` rows together."""
    return np.diff(np.append(starts, n))


def _group_of(tensor: Ints) -> Ints:
    """Number the groups of sorted rows, from 0 without gaps."""
    return np.cumsum(_starts(tensor)) - 1


def _histograms(table: pa.Table, index: Ints, *, firsts_of: Ints, is_bound: pa.Array) -> dict[str, Any]:
    """Return `hist_first` and `hist` of each logical tensor; empty where the values are a sum."""
    taken = table.select(["hist_first", "hist"]).take(pa.array(index)).combine_chunks()
    lists = taken["hist"].combine_chunks()
    lengths = pc.list_value_length(lists).to_numpy()
    group = np.repeat(firsts_of, lengths)
    inside = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    exponent = np.repeat(taken["hist_first"].to_numpy(), lengths) + inside
    counts = lists.flatten().to_numpy()
    n_groups = len(is_bound)
    first = np.zeros(n_groups, np.int64)
    hist: list[list[int]] = [[] for _ in range(n_groups)]
    if len(counts):
        low, high = np.full(n_groups, np.iinfo(np.int64).max), np.full(n_groups, np.iinfo(np.int64).min)
        np.minimum.at(low, group, exponent)
        np.maximum.at(high, group, exponent)
        sizes = np.where(high >= low, high - low + 1, 0)
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        flat = np.zeros(offsets[-1], np.int64)
        np.add.at(flat, offsets[group] + exponent - low[group], counts)
        keep = (sizes > 0) & ~is_bound.to_numpy(zero_copy_only=False)
        first = np.where(keep, low, 0)
        hist = [flat[offsets[i] : offsets[i + 1]].tolist() if keep[i] else [] for i in range(n_groups)]
    return {"hist_first": pa.array(first, pa.int32()), "hist": pa.array(hist, pa.list_(pa.int64()))}


def _sketches(table: pa.Table, index: Ints, group: Ints, n_shards: Ints, are_of_shards: bool) -> pa.Array:
    """Add up the sketches of summands, and those of shards if each was taken at its place: they are linear."""
    total: list[npt.NDArray[np.float32] | None] = [None] * len(n_shards)
    is_known = np.ones(len(n_shards), np.bool_) if are_of_shards else n_shards == 1
    for at, values in zip(group.tolist(), table["sketch"].take(pa.array(index)).to_pylist(), strict=True):
        before = total[at]
        if values is None or (before is not None and len(before) != len(values)):
            is_known[at] = False
        elif is_known[at]:
            one = np.asarray(values, np.float32)
            total[at] = one if before is None else before + one
    found = [None if one is None or not ok else one.tolist() for one, ok in zip(total, is_known, strict=True)]
    return pa.array(found, pa.list_(pa.float32()))


def with_placements(table: pa.Table, known: dict[_Of, str] | None = None) -> pa.Table:
    """Fill in missing placements of parameters and gradients with those known of the same rank and site.

    Digests carry placements, and are written on a schedule; norms are written at each step and carry none. A gradient
    before its reduction is placed as nothing else is, and stays without.

    Args:
        known: placements from rows seen before; those of `table` are added.
    """
    known = {} if known is None else known
    has_own = pc.fill_null(pc.not_equal(table["placement"], ""), False)
    if pc.all(has_own).as_py():
        return table
    is_grad = pc.is_in(table["port"], value_set=pa.array(_OF_GRAD))
    is_param = pc.and_(pc.equal(table["phase"], "param"), pc.invert(is_grad))
    kind = pc.if_else(is_grad, pa.scalar("grad"), pc.if_else(is_param, pa.scalar("param"), pa.scalar("")))
    keys = pa.table({"rank": table["rank"], "site": table["site"], "kind": kind})
    code = _codes(keys, keys.column_names)
    told, at = np.unique(code, return_index=True)
    last = np.full(len(told), -1)
    own = np.flatnonzero(has_own.to_numpy())
    last[code[own]] = own
    of = [(row["rank"], row["site"], row["kind"]) for row in keys.take(pa.array(at)).to_pylist()]
    texts = table["placement"].take(pa.array(np.maximum(last, 0))).to_pylist()
    known.update({key: text for key, text, i in zip(of, texts, last, strict=True) if i >= 0 and key[2]})
    filled = pa.array([known.get(key, "") for key in of], pa.string()).take(pa.array(code))
    column = pc.if_else(has_own, table["placement"], filled)
    return table.set_column(table.schema.get_field_index("placement"), "placement", column)


def logical_steps(tables: Iterable[tuple[int, pa.Table]], places: Mapping[int, Place]) -> Iterator[pa.Table]:
    """Merge rows of all ranks, which come rank by rank, step by step (see `merged`).

    A row without placement has that which its rank and site had at an earlier step or in another row of the step.

    Args:
        tables: (rank, rows in columns of READS), ranks rising.
        places: where ranks stand.
    """
    by_step, known = RowsByStep(len(places)), dict[_Of, str]()
    for _, table in tables:
        by_step.put(table)
    steps = by_step.steps()
    for step in steps:
        yield merged(with_placements(by_step.take(step), known), places)
    if not steps:
        yield merged(by_step.take(0), places)
    by_step.close()
