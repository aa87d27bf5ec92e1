"""Which pairs may be compared by their sketches: those whose tensors are the same matrix to a sketch."""

from __future__ import annotations

from collections.abc import Mapping

from hypocenter.compare.comparison import Pair, SiteCard, Spot


def has_comparable_sketches(pair: Pair, baseline: Mapping[Spot, SiteCard], candidate: Mapping[Spot, SiteCard]) -> bool:
    """Whether equal values give equal sketches on both sides.

    A sketch knows rows and columns by their numbers: the last dimension is the columns, all others together the rows.
    Padding at the end of rows or columns leaves the numbers of what is before it, where only the first dimension or the
    last one grows.
    """
    layout = pair.layout
    if layout.swapped or (len(pair.baseline) + len(pair.candidate) > 2 and layout.kind != "copies"):
        return False
    shapes = [cards[spots[0]].shape for cards, spots in ((baseline, pair.baseline), (candidate, pair.candidate))]
    if layout.kind == "reshaped":
        return all(len(shape) > 1 for shape in shapes) and shapes[0][-1] == shapes[1][-1]
    if layout.kind == "padded":
        return all(len(shape) > 1 for shape in shapes) and layout.dim in (0, len(shapes[0]) - 1)
    return layout.kind in ("identity", "copies")
