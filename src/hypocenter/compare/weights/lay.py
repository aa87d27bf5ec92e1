"""The baseline's tensors of a pair as views in the candidate's layout: what is compared, and what convert writes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hypocenter.compare.comparison import Layout, Pair
from hypocenter.compare.weights import elements
from hypocenter.compare.weights.checkpoint import Checkpoint, Planned, Tensor, boxes
from hypocenter.compare.weights.views import joined, reshaped, resized, shares, turned

_ATTENTION = re.compile(r"qkv|query_key_value|c_attn|attention|attn")
_SAMPLE = 1 << 16  # elements that tell in which order the parts of a fused tensor lie
ALIKE = 0.2  # relative error of a sample below which an order is believed: the wrong one gives about sqrt(2)
_MOST_GROUPS = 256  # query groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Laid:
    """A view of the baseline and the candidate's tensor that it should equal; None when the order is not known."""

    name: str
    view: Tensor | None
    target: Tensor


def lay(pair: Pair, baseline: Checkpoint, candidate: Checkpoint, *, pad: bool = False) -> list[Laid]:
    """Return one entry for each of the candidate's tensors in the pair.

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
        known = {**baseline.settings, **candidate.settings, "is_attention": int(is_attention(names[0]))}
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
    """Pair the tensors; a single one is paired with each copy on the other side."""
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


def is_attention(name: str) -> bool:
    """Return whether a fused tensor of this name holds query, key and value, not gate and up."""
    return bool(_ATTENTION.search(name))


def _in_order(
    layout: Layout, ours: list[Tensor], theirs: list[Tensor], settings: Mapping[str, int]
) -> Sequence[Tensor | None]:
    """Return views of a fused pair, in the order that the values show, else the one that the names tell."""
    if len(ours) == len(theirs) == 1:
        return _both_fused(layout, ours[0], theirs[0], settings)
    whole, parts = (theirs[0], ours) if len(ours) > 1 else (ours[0], theirs)
    layout = layout if layout.sizes else replace(layout, sizes=tuple(part.shape[layout.dim] for part in parts))
    told = [layout] if layout.groups or layout.kind == "concatenated" else []
    if any(isinstance(tensor, Planned) for tensor in (whole, *parts)):  # no values to find out by
        found = told
    else:
        tried = [(part_error(order, whole, parts), at, order)
                 for at, order in enumerate((*told, *orders(layout, layout.sizes)))]  # fmt: skip
        fitting = [order for error, _, order in tried[: len(told)] if error < ALIKE]
        found = fitting or [order for error, _, order in sorted(tried[len(told) :])[:1] if error < ALIKE] or told
    if not found or not _is_whole(found[0]):
        return [None] * len(theirs)
    (order, *_) = found
    if whole is theirs[0]:
        view = joined(tuple(ours), order.dim, _groups(order))
        return [turned(view) if order.swapped else view]
    return shares(turned(whole) if order.swapped else whole, order.sizes, order.dim, _groups(order))


def _groups(order: Layout) -> int:
    return 1 if order.kind == "concatenated" else order.groups


def _is_whole(order: Layout) -> bool:
    """Return whether each group holds whole rows of every part."""
    return _groups(order) >= 1 and not any(size % _groups(order) for size in order.sizes)


def orders(layout: Layout, sizes: tuple[int, ...]) -> Iterator[Layout]:
    """Yield all orders in which parts of these sizes can lie in a fused tensor: one after another, or in groups."""
    yield replace(layout, kind="concatenated", groups=1)
    smallest = min(sizes)
    candidates = [g for g in range(1, min(smallest, _MOST_GROUPS) + 1) if all(size % g == 0 for size in sizes)]
    if len(set(sizes)) == 1 and smallest not in candidates:
        candidates.append(smallest)  # gate and up, row by row
    for groups in candidates:
        yield replace(layout, kind="interleaved", groups=groups)


def part_error(layout: Layout, whole: Tensor, parts: Sequence[Tensor]) -> float:
    """Return the relative L2 error of samples of the parts if they lie so; infinite where shapes do not fit.

    Part by part: the first rows of a whole are those of its first part in whatever order.
    """
    laid = turned(whole) if layout.swapped and len(whole.shape) >= 2 else whole
    if not _is_whole(layout) or len(laid.shape) <= layout.dim or sum(layout.sizes) != laid.shape[layout.dim]:
        return float("inf")
    return sample_error(shares(laid, layout.sizes, layout.dim, _groups(layout)), parts)


def reordering_error(layout: Layout, mine: Tensor, yours: Tensor) -> float:
    """Return the error as `part_error` does, for a tensor that both sides fuse: `layout.kind` is the candidate's
    order, the baseline has the other.
    """
    ours = replace(layout, kind="interleaved" if layout.kind == "concatenated" else "concatenated")
    if not _is_whole(ours) or not _is_whole(layout) or sum(layout.sizes) != yours.shape[layout.dim]:
        return float("inf")
    return part_error(ours, mine, shares(yours, layout.sizes, layout.dim, _groups(layout)))


def _both_fused(layout: Layout, mine: Tensor, yours: Tensor, settings: Mapping[str, int]) -> list[Tensor | None]:
    known = [(layout.sizes, layout.groups)] if layout.sizes else fused_sizes(yours.shape[layout.dim], settings)
    for sizes, groups in known:
        order = replace(layout, sizes=sizes, groups=groups)
        if reordering_error(order, mine, yours) < ALIKE:
            before, after = (1, groups) if order.kind == "interleaved" else (groups, 1)
            laid = turned(mine) if order.swapped and len(mine.shape) >= 2 else mine
            return [joined(tuple(shares(laid, sizes, order.dim, before)), order.dim, after)]
    return [None]


def fused_sizes(total: int, settings: Mapping[str, int]) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield (sizes of parts, groups) that a fused tensor of so many rows may have, by the network's settings."""
    groups, heads = settings.get("num_query_groups", 0), settings.get("num_attention_heads", 0)
    attention = bool(settings.get("is_attention"))
    if attention and groups and heads and total % (heads + 2 * groups) == 0:
        head = total // (heads + 2 * groups)
        yield (heads * head, groups * head, groups * head), groups
    if total % 2 == 0 and not attention:
        yield (total // 2, total // 2), total // 2
        if groups:
            yield (total // 2, total // 2), groups


def sample_error(views: Sequence[Tensor], targets: Sequence[Tensor]) -> float:
    """Return the relative L2 error of a sample of the first rows of each; infinite where shapes differ."""
    apart = size = 0.0
    if len(views) != len(targets):
        return float("inf")
    for view, target in zip(views, targets, strict=True):
        if view.shape != target.shape:
            return float("inf")
        box = next(boxes(view.shape, at_most=_SAMPLE), None)
        if box is None or isinstance(target, Planned):
            continue
        a, b = (np.nan_to_num(elements.values(t.read(box), t.dtype)) for t in (view, target))
        apart += float(np.square(np.abs(a - b)).sum())
        size += float(np.square(np.abs(b)).sum())
    return (apart / size) ** 0.5 if size else (0.0 if apart == 0 else float("inf"))
