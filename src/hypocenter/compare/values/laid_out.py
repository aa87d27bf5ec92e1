"""Stored tensors of a pair as views that lie alike on both sides: cut, turned and reshaped, nothing is copied."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hypocenter.compare.comparison import Layout
from hypocenter.compare.values.bits import Raw
from hypocenter.compare.values.tensor_file import Stored

Views = list[tuple[Stored, Stored]]  # (baseline, candidate), of equal shapes


def laid_out(layout: Layout, baseline: Sequence[Stored], candidate: Sequence[Stored]) -> Views | None:
    """Views of both sides, a pair for each part; None when the shapes do not fit the layout, or the order is not known.

    Args:
        layout: of the pair.
        baseline, candidate: the parts of each side in order.
    """
    try:
        views = _views(layout, baseline, candidate)
    except (ValueError, IndexError):  # NumPy says so when a shape does not fit
        return None
    if views is None or any(a.shape != b.shape for a, b in views):
        return None
    return views


def _views(layout: Layout, baseline: Sequence[Stored], candidate: Sequence[Stored]) -> Views | None:
    if layout.kind == "copies":
        return [(a, _as_shape(b, a.raw.shape)) for a in baseline for b in candidate]
    if layout.kind in ("concatenated", "interleaved"):
        if len(baseline) == len(candidate) == 1:  # fused on both sides, in another order
            return _both_fused(layout, baseline[0], candidate[0])
        if len(candidate) == 1:
            return list(zip(baseline, _cut(candidate[0], layout), strict=True))
        return list(zip(_cut(baseline[0], layout), candidate, strict=True)) if len(baseline) == 1 else None
    if layout.kind == "identity" and len(baseline) == len(candidate):
        return list(zip(baseline, candidate, strict=True))
    if len(baseline) != 1 or len(candidate) != 1:
        return None
    a, b = baseline[0], candidate[0]
    if layout.swapped:
        b = _with(b, np.swapaxes(b.raw, 0, 1))
    if layout.kind == "transposed":
        b = _with(b, b.raw.T)
    elif layout.kind == "reshaped":
        b = _with(b, b.raw.reshape(a.shape))
    elif layout.kind == "padded":
        a, b = _front(a, layout.dim, layout.sizes[0]), _front(b, layout.dim, layout.sizes[0])
    return [(a, b)]


def _as_shape(stored: Stored, shape: tuple[int, ...]) -> Stored:
    return stored if stored.raw.shape == shape else _with(stored, stored.raw.reshape(shape))


def _both_fused(layout: Layout, baseline: Stored, candidate: Stored) -> Views | None:
    """Nothing says which element stands against which, unless the parts are known."""
    if not layout.sizes:
        return None
    plain = replace(layout, kind="concatenated", groups=1)
    return list(zip(_cut(baseline, plain), _cut(candidate, layout), strict=True))


def _cut(whole: Stored, layout: Layout) -> list[Stored]:
    """The parts of a fused tensor."""
    raw = np.swapaxes(whole.raw, 0, 1) if layout.swapped else whole.raw
    groups = layout.groups if layout.kind == "interleaved" else 1
    if groups < 1 or sum(layout.sizes) != raw.shape[layout.dim] or any(size % groups for size in layout.sizes):
        raise ValueError("the parts are not known")
    grouped = raw.reshape(*raw.shape[: layout.dim], groups, -1, *raw.shape[layout.dim + 1 :])
    found: list[Stored] = []
    start = 0
    for size in layout.sizes:
        stop = start + size // groups
        part = grouped[(slice(None),) * (layout.dim + 1) + (slice(start, stop),)]
        found.append(_with(whole, part.reshape(*raw.shape[: layout.dim], size, *raw.shape[layout.dim + 1 :])))
        start = stop
    return found


def _front(tensor: Stored, dim: int, size: int) -> Stored:
    if size > tensor.shape[dim]:
        raise ValueError("less than both should have")
    return _with(tensor, tensor.raw[(slice(None),) * dim + (slice(0, size),)])


def _with(tensor: Stored, raw: Raw) -> Stored:
    return Stored(dtype=tensor.dtype, raw=raw)


def n_elements(views: Views) -> int:
    """Of one side."""
    return sum(math.prod(a.shape) for a, _ in views)
