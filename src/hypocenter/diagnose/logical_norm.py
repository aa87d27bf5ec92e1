"""The norm of a job's gradients, from the local norms of every rank."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hypocenter.axes import HOLD_COPIES
from hypocenter.diagnose.logical import merged, with_placements
from hypocenter.diagnose.placements import parsed
from hypocenter.diagnose.rows_by_step import RowsByStep
from hypocenter.nouns import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class GradNorm:
    """The L2 norm of the gradients of all logical parameters at one step."""

    step: int
    norm: float | None  # None when it cannot be told
    n_parameters: int = 0
    why_not: str = ""  # why it cannot be told, or why it is only a bound
    is_lower_bound: bool = False  # shards are missing
    is_upper_bound: bool = False  # gradients are summands that were not added yet


def grad_norms(table: pa.Table, places: Mapping[int, Place], port: str = "grad") -> list[GradNorm]:
    """Return the L2 norm of the job's gradients, step by step, from the local norms of every rank.

    A parameter that is replicated counts once, shards add up. Parameters that two pipeline stages share under two names
    count twice.

    Args:
        table: readings of phase grad in columns of READS; a placement that a row lacks is taken from the rows that have
            one for the same rank and parameter.
        places: where ranks stand.
        port: whose rows to take.
    """
    rows = with_placements(table).filter(_is_norm(table, port))
    if not rows.num_rows:
        return []
    n_ranks = pc.count_distinct(rows["rank"]).as_py()
    logical = merged(rows, places)
    if pc.sum(logical["has_equal_shards"]).as_py() * 2 > logical.num_rows:
        why = "most shards have equal norms: they are copies (hybrid sharding), and how many was not recorded"
        return [GradNorm(step=step, norm=None, why_not=why) for step in sorted(set(logical["step"].to_pylist()))]
    names = ("step", "sumsq", "n_nan", "is_complete", "is_bound", "placement", "rank")
    columns: list[Any] = [logical[name].to_pylist() for name in names]
    by_step: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    untold: dict[int, str] = {}
    for step, *rest, placement, rank in zip(*columns, strict=True):
        by_step[step].append(tuple(rest))
        if n_ranks > 1 and (axes := _untold(placement or "", places.get(rank))):
            untold[step] = axes
    return [_norm(step, by_step[step], untold.get(step, "")) for step in sorted(by_step)]


def job_grad_norms(tables: Iterable[tuple[int, pa.Table]], places: Mapping[int, Place]) -> Iterator[GradNorm]:
    """Yield the norms as `grad_norms` does, for a job larger than memory: rows are merged step by step.

    Args:
        tables: (rank, readings of phase grad in columns of READS), ranks rising.
        places: where ranks stand.
    """
    by_step, known = RowsByStep(len(places)), dict[tuple[int, str, str], str]()
    for _, table in tables:
        with_placements(table, known)
        by_step.put(table)
    for step in by_step.steps():
        yield from grad_norms(with_placements(by_step.take(step), known), places)
    by_step.close()


def _untold(placement: str, place: Place | None) -> str:
    """Name the axes over which copies and shards cannot be told apart."""
    if place is None:
        return "the ranks"
    known = parsed(placement)
    axes = [axis for axis in HOLD_COPIES if len(place.groups.get(axis, ())) > 1 and axis not in known]
    return ", ".join(axes) or ("" if known else "the ranks")


def _norm(step: int, tensors: Sequence[tuple[Any, ...]], untold: str) -> GradNorm:
    if untold:
        return GradNorm(step=step, norm=None, why_not=f"how gradients are placed over {untold} was not recorded")
    is_bad = any(n_nan for _, n_nan, *_ in tensors)
    is_cut = not all(is_complete for _, _, is_complete, *_ in tensors)
    is_bound = any(is_bound for *_, is_bound in tensors)
    norm = math.nan if is_bad else math.sqrt(math.fsum(sumsq for sumsq, *_ in tensors))
    if is_cut and is_bound:
        why = "shards are missing, and gradients are not reduced yet"
        return GradNorm(step=step, norm=None, n_parameters=len(tensors), why_not=why)
    why = "shards of some ranks are missing" if is_cut else "gradients are not reduced yet" if is_bound else ""
    return GradNorm(
        step=step, norm=norm, n_parameters=len(tensors), why_not=why, is_lower_bound=is_cut, is_upper_bound=is_bound
    )


def _is_norm(table: pa.Table, port: str) -> pa.Array:
    is_port = pc.and_(pc.equal(table["phase"], "grad"), pc.equal(table["port"], port))
    return pc.and_(is_port, pc.invert(pc.or_(table["replay"], table["recompute"])))
