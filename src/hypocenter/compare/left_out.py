"""Pairs that were not compared, since ranks hold parts of which it is not known how they make up the whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hypocenter.compare.comparison import Floor, Pair, RowComparison

Shapes = tuple[tuple[int, ...], tuple[int, ...]]


def not_put_together(
    left_out: Iterable[int], pairs: Sequence[Pair], shapes: Sequence[Shapes], compared: Sequence[RowComparison]
) -> list[RowComparison]:
    """A row for each of them that says that nobody can tell.

    Args:
        left_out: numbers of pairs.
        pairs, shapes: of the matching.
        compared: rows of those that were.
    """
    known = {row.pair for row in compared}
    return [
        RowComparison(
            pair=pairs[number], step=0, microbatch=0, order=0, distance=None, floor=Floor(relative=0.0),
            verdict="cannot-tell", shapes=shapes[number],
        )
        for number in sorted(left_out)
        if pairs[number] not in known
    ]  # fmt: skip
