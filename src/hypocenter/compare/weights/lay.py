"""The baseline's tensors of a pair as views in the candidate's layout: what is compared, and what convert writes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from hypocenter.compare.comparison import Layout, Pair
from hypocenter.compare.weights import elements
from hypocenter.compare.weights.checkpoint import Checkpoint
from hypocenter.compare.weights.tensor import Planned, Tensor, boxes
from hypocenter.compare.weights.views import joined, reshaped, resized, shares, turned

_ATTENTION = re.compile(r"qkv|query_key_value|c_attn|attention|attn")
_SAMPLE = 1 << 16  # elements that tell in which order the parts of a fused tensor lie
_ALIKE = 0.2  # relative error of a sample below which an order is believed: the wrong one gives about sqrt(2)
_MOST_GROUPS = 256  # query groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Laid:
    """A view of the baseline and the candidate's tensor that it should equal; None: in which order is not known."""

    name: str
    view: Tensor | None
    target: Tensor


def lay(pair: Pair, baseline: Checkpoint, candidate: Checkpoint, *, pad: bool = False) -> list[Laid]:
    """One entry for each of the candidate's tensors in the pair.

    Args:
        pair: with its layout; an unknown order of a fused one is found out from the values.
        baseline: has the pair's tensors.
        candidate: as `baseline`.
        pad: fill padding with zeros, to write it; otherwise both sides are cut to what both have.
    """
    ours = [baseline.tensors[spot.site] for spot in pair.baseline]
    theirs = [candidate.tensors[spot.site] for spot in pair.candidate]
    names = [spot.site for spot in pair.candidate]
    if pair.layout.kind in ("concatenated", "interleaved"):
        known = {**baseline.settings, **candidate.settings}
        known = {**known, "is_attention": int(bool(_ATTENTION.search(names[0])))}
        views = _in_order(pair.layout, ours, theirs, known)
    else:
        views = [_one(pair.layout, mine, yours, pad) for mine, yours in _paired(ours, theirs)]
        theirs = [yours for _, yours in _paired(ours, theirs)]
        names = names if len(names) == len(views) else names * len(views)
    found: list[Laid] = []
    for name, view, target in zip(names, views, theirs, strict=True):
        if view is not None and not pad and pair.layout.kind == "padded":
            dim, size = pair.layout.dim, pair.layout.sizes[0]
            view, target = resized(view, dim, size), resized(target, dim, size)
        found.append(Laid(name=name, view=view if view is None or view.shape == target.shape else None, target=target))
    return found


def _paired(ours: list[Tensor], theirs: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Copies are each compared with the one."""
    n = max(len(ours), len(theirs))
    return list(zip(ours * n if len(ours) == 1 else ours, theirs * n if len(theirs) == 1 else theirs, strict=True))


def _one(layout: Layout, mine: Tensor, yours: Tensor, pad: bool) -> Tensor | None:
    if (layout.kind in ("transposed", "swapped") or layout.swapped) and len(mine.shape) >= 2:
        mine = turned(mine)
    if layout.kind == "padded" and pad:
        return resized(mine, layout.dim, yours.shape[layout.dim])
    if layout.kind in ("reshaped", "copies") and mine.n == yours.n:
        return reshaped(mine, yours.shape)
    return mine


def _in_order(
    layout: Layout, ours: list[Tensor], theirs: list[Tensor], settings: dict[str, int]
) -> list[Tensor | None]:
    """Views of a fused pair: the order that the values show, else the one that the names tell."""
    told = list(_views(layout, ours, theirs, layout.groups, settings)) if layout.groups or _is_chain(layout) else []
    if told and _error(told, theirs) < _ALIKE:
        return list(told)
    if any(isinstance(target, Planned) for target in theirs):  # no values to find out by
        return [*told] if told else [None] * len(theirs)
    best, least = told, _ALIKE
    for other in _others(layout, ours, theirs):
        views = list(_views(other, ours, theirs, other.groups, settings))
        error = _error(views, theirs) if views else np.inf
        if error < least:
            best, least = views, error
    return list(best) if best else [None] * len(theirs)


def _is_chain(layout: Layout) -> bool:
    return layout.kind == "concatenated"


def _others(layout: Layout, ours: list[Tensor], theirs: list[Tensor]) -> Iterator[Layout]:
    yield replace(layout, kind="concatenated", groups=1)
    sizes = layout.sizes or tuple(part.shape[layout.dim] for part in (ours if len(ours) > 1 else theirs))
    smallest = min(sizes)
    candidates = [g for g in range(1, min(smallest, _MOST_GROUPS) + 1) if all(size % g == 0 for size in sizes)]
    if len(set(sizes)) == 1 and smallest not in candidates:
        candidates.append(smallest)  # gate and up, row by row
    for groups in candidates:
        yield replace(layout, kind="interleaved", groups=groups)


def _views(
    layout: Layout, ours: list[Tensor], theirs: list[Tensor], groups: int, settings: dict[str, int]
) -> Iterator[Tensor]:
    """The baseline in the candidate's layout; nothing when shapes do not allow this layout."""
    dim, sizes = layout.dim, layout.sizes
    groups = 1 if layout.kind == "concatenated" else groups
    if len(ours) == len(theirs) == 1:
        yield from _both_fused(layout, ours[0], theirs[0], settings)
        return
    parts = ours if len(ours) > 1 else theirs
    sizes = sizes or tuple(part.shape[dim] for part in parts)
    if groups < 1 or any(size % groups for size in sizes):
        return
    if len(ours) > 1:
        view = joined(tuple(ours), dim, groups)
        yield turned(view) if layout.swapped else view
    else:
        yield from shares(turned(ours[0]) if layout.swapped else ours[0], sizes, dim, groups)


def _both_fused(layout: Layout, mine: Tensor, yours: Tensor, settings: dict[str, int]) -> Iterator[Tensor]:
    """Fused on both sides: `layout.kind` is the candidate's order, the baseline has the other."""
    mine = turned(mine) if layout.swapped and len(mine.shape) >= 2 else mine
    dim, total = layout.dim, mine.shape[layout.dim]
    for sizes, groups in _fused_sizes(total, settings):
        if sum(sizes) != total or any(size % groups for size in sizes):
            continue
        ours, theirs = (1, groups) if layout.kind == "interleaved" else (groups, 1)
        view = joined(tuple(shares(mine, sizes, dim, ours)), dim, theirs)
        if _error([view], [yours]) < _ALIKE:
            yield view
            return


def _fused_sizes(total: int, settings: dict[str, int]) -> Iterator[tuple[tuple[int, ...], int]]:
    groups, heads = settings.get("num_query_groups", 0), settings.get("num_attention_heads", 0)
    attention = bool(settings.get("is_attention"))
    if attention and groups and heads and total % (heads + 2 * groups) == 0:
        head = total // (heads + 2 * groups)
        yield (heads * head, groups * head, groups * head), groups
    if total % 2 == 0 and not attention:
        yield (total // 2, total // 2), total // 2
        if groups:
            yield (total // 2, total // 2), groups


def _error(views: list[Tensor], targets: list[Tensor]) -> float:
    """Relative L2 error of a sample of the first rows; infinite where shapes differ."""
    apart = size = 0.0
    for view, target in zip(views, targets, strict=False):
        if view.shape != target.shape or len(views) != len(targets):
            return float("inf")
        if isinstance(target, Planned):
            continue
        box = next(boxes(view.shape, at_most=_SAMPLE), None)
        if box is None:
            continue
        a, b = (np.nan_to_num(elements.values(t.read(box), t.dtype)) for t in (view, target))
        apart += float(np.square(np.abs(a - b)).sum())
        size += float(np.square(np.abs(b)).sum())
    return (apart / size) ** 0.5 if size else (0.0 if apart == 0 else float("inf"))
