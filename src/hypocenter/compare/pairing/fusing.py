"""Fused against split: one module that holds what are several on the other side (QKV, KV, gate and up)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hypocenter.compare.comparison import Layout, SiteCard
from hypocenter.compare.pairing.layouts import is_parameter, swapped
from hypocenter.compare.pairing.sameness import FAR, NEAR, distances, is_telling

Order = Literal["concatenated", "interleaved"]

FUSED: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("attn.qkv", ("attn.q", "attn.k", "attn.v")),
    ("attn.kv", ("attn.k", "attn.v")),
    ("cross.kv", ("cross.k", "cross.v")),
    ("gate_up", ("gate", "up")),
    ("gate_up", ("up",)),  # no gate: what a naming calls by one name either way
)
"""Canonical endings of a fused module and of its parts, in the order in which they lie in it."""

_SAME_SUM = 1e-4  # relative, of sums of squares: parts that hold the same values as the whole agree to float32 rounding
_ONE_AFTER_ANOTHER, _IN_GROUPS = (
    0.8,
    0.6,
)  # share of the first part found at the front of the whole; 1/groups if interleaved


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """How the parts lie in a fused module, and how that is known."""

    order: Order
    groups: int  # 0: not known
    why: str


def fused_layout(whole: SiteCard, parts: Sequence[SiteCard], fusion: Fusion) -> Layout | None:
    """Return the layout of a fused tensor against its parts; None when their shapes do not add up."""
    if is_parameter(whole):
        return _along(whole.shape, [part.shape for part in parts], 0, fusion)
    return _along(whole.shape, [part.shape for part in parts], len(whole.shape) - 1, fusion)


def _along(whole: tuple[int, ...], parts: Sequence[tuple[int, ...]], dim: int, fusion: Fusion) -> Layout | None:
    if not whole or any(len(part) != len(whole) for part in parts):
        return None
    for turned in (False, True):
        if turned and (len(whole) < 2 or swapped(whole) == whole):
            continue
        shape = swapped(whole) if turned else whole
        rest = {part[:dim] + part[dim + 1 :] for part in parts}
        if rest == {shape[:dim] + shape[dim + 1 :]} and sum(part[dim] for part in parts) == shape[dim]:
            sizes = tuple(part[dim] for part in parts)
            return Layout(
                kind=fusion.order,
                dim=dim,
                sizes=sizes,
                groups=fusion.groups if fusion.order == "interleaved" else 1,
                swapped=turned,
            )
    return None


def order_by_sketch(whole: SiteCard, parts: Sequence[SiteCard]) -> Order | None:
    """Return how the parts of a fused weight lie in it, from sketches; None when they cannot tell.

    The inner product of the whole's sketch with the first part's estimates how much of that part lies at the front of
    the whole: all of it when the parts come one after another, 1/groups when they are interleaved.
    """
    first = parts[0]
    if not whole.sketch or not first.sketch or len(whole.sketch) != len(first.sketch) or not is_telling(first):
        return None
    if len(whole.shape) != 2 or whole.shape[1:] != first.shape[1:]:
        return None
    if not math.isclose(whole.sumsq, sum(part.sumsq for part in parts), rel_tol=_SAME_SUM):
        return None
    mine, of_first = np.nan_to_num(np.array(whole.sketch)), np.nan_to_num(np.array(first.sketch))
    share = float(mine @ of_first) / max(float(of_first @ of_first), float(np.finfo(np.float64).tiny))
    if share > _ONE_AFTER_ANOTHER:
        return "concatenated"
    return "interleaved" if share < _IN_GROUPS else None


def same_order(a: SiteCard, b: SiteCard) -> bool | None:
    """Return whether two fused weights of equal norm hold parts in the same order; None when sketches cannot tell."""
    if not a.sketch or not b.sketch or a.shape != b.shape or not math.isclose(a.sumsq, b.sumsq, rel_tol=_SAME_SUM):
        return None
    apart = float(distances([a], [b])[0, 0])
    return True if apart <= NEAR else False if FAR <= apart < math.inf else None
