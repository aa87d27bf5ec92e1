"""Copies of one tied parameter on different pipeline stages go apart.

What it means
    The embedding on the first stage and the output layer on the last are one parameter that two ranks hold a copy
    of. Their gradients have to be added up before each update; here each copy is updated with its own.

How it is decided
    An embedding and an output layer (by class or name) of one shape on the first and last rank of a pipeline group,
    both with gradients, whose digests are equal at the first recorded step: two random initialisations are never
    equal, so they are meant to be one. Or both are marked as shared (Megatron-Core). Reported when their digests, or
    the digests of their gradients as the optimizer sees them, later differ.

What to do
    All-reduce the gradient over the group of the two stages before the step (Megatron: `finalize_model_grads` does,
    if the embedding group exists and both parameters carry `shared_embedding`), and copy one onto the other now.

When it is wrong
    Where an untied model was made from a tied checkpoint and is meant to train both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypocenter.axes import HOLD_COPIES
from hypocenter.detect.group_engine import group_rule
from hypocenter.detect.panel import Panel
from hypocenter.detect.rank_words import when_words
from hypocenter.detect.replica_rows import GRAD, PARAM
from hypocenter.detect.replica_track import is_last
from hypocenter.nouns import Finding, Remedy

_ENDS = re.compile(r"embed|wte|lm_head|output_layer|(^|\.)(tok|head|output|decoder|unembed)", re.IGNORECASE)
_OF_EMBEDDING = re.compile(r"embed|wte|(^|\.)tok", re.IGNORECASE)


@dataclass(slots=True)
class _Pair:
    """Two tied copies: (rank, site) on the first and on the last stage."""

    first: tuple[int, str]
    last: tuple[int, str]
    equal_at: int
    is_told: bool = True  # that these are stages
    has_gradients: bool = False
    apart: tuple[int, str] | None = None  # step, port


@dataclass(slots=True)
class _Known:
    pairs: list[_Pair] | None = None
    fed: set[int] = field(default_factory=set[int])


@group_rule("HC307", "desync", severity="error", reads=("digest",), asked="unlike")
def check(panel: Panel) -> Iterator[Finding]:
    """At the last step, report pairs that began equal and no longer are."""
    known: _Known = panel.history.notes["HC307"].setdefault("known", _Known())
    rows = _rows(panel)
    if rows:
        if known.pairs is None:
            known.pairs = list(_tied(panel, rows))
        for pair in known.pairs:
            _follow(pair, rows, panel.step)
    if is_last(panel):
        apart = [p for p in known.pairs or () if p.apart is not None and p.has_gradients]
        yield from (_finding(pair) for pair in apart[:1])


Rows = dict[tuple[int, str, str, int], dict[str, Any]]  # rank, site, port, call


def _rows(panel: Panel) -> Rows:
    """Return rows of parameters and gradients that by name or module are of embeddings and output layers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    groups = _stages(panel)
    if not groups:
        return {}
    table = panel.table.select(["rank", "site", "port", "call", "digest", "shape", "module", "placement"])
    ends = pa.array(sorted({rank for ranks in groups for rank in (ranks[0], ranks[-1])}), table["rank"].type)
    table = table.filter(pc.and_(pc.is_in(table["rank"], value_set=ends), pc.is_valid(table["digest"])))
    table = table.filter(pc.is_in(table["port"], value_set=pa.array([PARAM, GRAD])))
    sites = [site for site in table["site"].unique().to_pylist() if _ENDS.search(site)]
    table = table.filter(
        pc.or_(
            pc.is_in(table["site"], value_set=pa.array(sites, pa.string())),
            pc.match_substring(table["module"], "Embedding"),
        )
    )
    picked: list[dict[str, Any]] = table.to_pylist()
    return {(r["rank"], r["site"], r["port"], r["call"]): r for r in picked}


def _stages(panel: Panel) -> list[tuple[int, ...]]:
    """Return the pipeline groups; of a job in which nothing tells groups, all its ranks."""
    if any(panel.groups(axis) for axis in HOLD_COPIES) or len(panel.ranks) < 2:
        return panel.groups("pp")
    return panel.groups("pp") or [tuple(panel.ranks)]


def _are_parts(panel: Panel, ranks: Sequence[int]) -> bool:
    """Return whether most matrices of these two ranks are of one of them alone, as far as their bits tell."""
    import pyarrow.compute as pc

    values = panel.where(port=PARAM)
    values = values.filter(pc.and_(pc.is_valid(values["digest"]), pc.equal(values["call"], 0)))
    values = values.filter(pc.equal(pc.list_value_length(values["shape"]), 2))
    first, last = ({*values.filter(pc.equal(values["rank"], rank))["digest"].to_pylist()} for rank in ranks)
    return 2 * len(first & last) < min(len(first), len(last))


def _tied(panel: Panel, rows: Rows) -> Iterator[_Pair]:
    is_told = bool(panel.groups("pp"))
    for ranks in _stages(panel):
        if not is_told and not _are_parts(panel, (ranks[0], ranks[-1])):
            continue
        on_first = [r for (rank, _, port, call), r in rows.items() if rank == ranks[0] and port == PARAM and call == 0]
        on_last = [r for (rank, _, port, call), r in rows.items() if rank == ranks[-1] and port == PARAM and call == 0]
        for a in on_first:
            for b in on_last:
                same = a["shape"] == b["shape"] and len(a["shape"]) == 2 and a["digest"] == b["digest"]
                is_marked = all("pp=R" in (r["placement"] or "").split() for r in (a, b))
                if same and (is_marked or _is_embedding(a)):
                    ends = (a["rank"], a["site"]), (b["rank"], b["site"])
                    yield _Pair(first=ends[0], last=ends[1], equal_at=panel.step, is_told=is_told)


def _is_embedding(row: dict[str, Any]) -> bool:
    return "Embedding" in row["module"] or bool(_OF_EMBEDDING.search(row["site"]))


def _follow(pair: _Pair, rows: Rows, step: int) -> None:
    if pair.apart is not None:
        return
    for port, call in ((PARAM, 0), (GRAD, 0), (PARAM, 1)):
        a, b = rows.get((*pair.first, port, call)), rows.get((*pair.last, port, call))
        if a is None or b is None:
            continue
        pair.has_gradients |= port == GRAD
        if a["digest"] != b["digest"]:
            pair.apart = step, port
            return
        if port == PARAM:
            pair.equal_at = step


def _finding(pair: _Pair) -> Finding:
    assert pair.apart is not None
    step, port = pair.apart
    (first_rank, first_site), (last_rank, last_site) = pair.first, pair.last
    is_gradient = port == GRAD
    shows = "their gradients at the optimizer differ" if is_gradient else "the copies themselves differ"
    return Finding(
        code="HC307",
        kind="desync",
        severity="error" if pair.is_told else "warning",
        title=f"tied copies go apart: {first_site} (rank {first_rank}) and {last_site} (rank {last_rank})",
        step=step,
        rank=last_rank,
        phase="grad" if is_gradient else "param",
        site=last_site,
        port=port,
        param=last_site,
        cause="missing-gradient-sync",
        confidence="likely",
        why=(
            f"both had the same bits at step {pair.equal_at}, on the first and the last "
            + ("pipeline stage" if pair.is_told else "rank; most other matrices are of one rank alone"),
            f"{shows} {when_words(pair.equal_at, step)}: nobody adds the two gradients up",
        ),
        names=(first_site, last_site),
        remedy=Remedy(
            action="reduce-gradients", targets=(first_site, last_site),
            text="all-reduce the gradient of the tied parameter over the two stages before the step",
        ),
    )  # fmt: skip
