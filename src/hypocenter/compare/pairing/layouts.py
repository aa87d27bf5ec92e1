"""How one tensor may lie against another, judged by shapes: None when they cannot be the same value."""

from __future__ import annotations

import math

from hypocenter.compare.comparison import Layout, SiteCard

PARAMETER_PHASES = frozenset({"param", "grad", "optimizer"})
TRANSPOSED_CLASSES = frozenset({"Conv1D"})  # keep (in, out) where others keep (out, in): transformers.pytorch_utils
MOST_PADDING = 1.25  # a vocabulary is padded to a multiple of 128 times tp: rarely by more than a quarter
_IDENTITY = Layout()


def is_parameter(card: SiteCard) -> bool:
    """Return whether a spot belongs to a parameter: its value, gradient or optimizer state."""
    return card.spot.phase in PARAMETER_PHASES


def kind_of(dtype: str) -> str:
    """Return the kind of number: float, int, bool or complex; "" when not known."""
    for prefix, kind in (("float", "float"), ("bfloat", "float"), ("double", "float"), ("half", "float")):
        if dtype.startswith(prefix):
            return kind
    return {"": "", "bool": "bool"}.get(dtype, "complex" if dtype.startswith("complex") else "int")


def layout_of(a: SiteCard, b: SiteCard, *, padding: bool = False) -> Layout | None:
    """Return how two spots of the same name lie against each other; None when they cannot be the same values.

    Args:
        a: spot of the baseline.
        b: spot of the candidate.
        padding: whether one may be padded: embedding, output layer and logits.
    """
    kinds = {kind_of(a.dtype), kind_of(b.dtype)} - {""}
    if len(kinds) > 1:
        return None
    if is_parameter(a):
        return parameter_layout(a, b, padding=padding)
    return activation_layout(a.shape, b.shape, padding=padding)


def parameter_layout(a: SiteCard, b: SiteCard, *, padding: bool = False) -> Layout | None:
    """Return a parameter's layout against another: identity, transposed, padded or reshaped; None when none fits."""
    turned = len({a.module in TRANSPOSED_CLASSES, b.module in TRANSPOSED_CLASSES}) == 2 and len(a.shape) == 2
    if a.shape == b.shape:
        return Layout(kind="transposed") if turned else _IDENTITY
    if len(a.shape) == 2 and a.shape == b.shape[::-1]:
        return Layout(kind="transposed")
    if _without_ones(a.shape) == _without_ones(b.shape):
        return Layout(kind="reshaped")
    if _is_flat(a.shape, b.shape):
        return Layout(kind="reshaped")
    return _padded(a.shape, b.shape, 0) if padding else None


def activation_layout(a: tuple[int, ...], b: tuple[int, ...], *, padding: bool = False) -> Layout | None:
    """Return an activation's layout: identity, swapped, reshaped or padded in the last dimension; None if none fits."""
    if a == b:
        return _IDENTITY
    if len(a) == len(b) >= 2 and swapped(a) == b:
        return Layout(kind="swapped", swapped=True)
    if a and b and _without_ones(a) == _without_ones(b):
        return Layout(kind="reshaped")
    if len(a) != len(b) and a and b and a[-1] == b[-1] and math.prod(a) == math.prod(b):
        return Layout(kind="reshaped")
    if _is_flat(a, b):
        return Layout(kind="reshaped")
    if not padding or not a or len(a) != len(b):
        return None
    if len(a) >= 3 and a[0] != a[1] and swapped(a)[:-1] == b[:-1]:
        found = _padded(swapped(a), b, len(a) - 1)
        return found and Layout(kind="padded", dim=found.dim, sizes=found.sizes, swapped=True)
    return _padded(a, b, len(a) - 1)


def swapped(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape with its first two dimensions exchanged."""
    return (shape[1], shape[0], *shape[2:])


def _is_flat(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Return whether one shape is the other in one dimension: all that is known of tensors merged from shards."""
    return min(len(a), len(b)) == 1 < max(len(a), len(b)) and math.prod(a) == math.prod(b)


def _padded(a: tuple[int, ...], b: tuple[int, ...], dim: int) -> Layout | None:
    if len(a) != len(b) or dim >= len(a) or a[:dim] + a[dim + 1 :] != b[:dim] + b[dim + 1 :]:
        return None
    small, large = sorted((a[dim], b[dim]))
    if small == 0 or large > max(small * MOST_PADDING, small + 1024):  # 128 * tp 8: a toy vocabulary is padded by more
        return None
    return Layout(kind="padded", dim=dim, sizes=(small,))


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)
