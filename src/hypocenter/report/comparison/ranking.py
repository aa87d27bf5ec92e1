"""Which rows of a comparison a reader wants first: the culprit, then by how far beyond noise they are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from hypocenter.compare.comparison import Comparison, RowComparison, SiteCard

_RANK = {"differs": 0, "cannot-tell": 1, "within-noise": 2, "equal": 3}


def ranked(found: Comparison) -> list[RowComparison]:
    """Return the culprit's row, at the step where it is to blame; then the worst row of each other pair, sorted."""
    culprit = found.first.row if found.first is not None else None
    pair = culprit.pair if culprit is not None else None
    others = [row for row in found.rows if row.pair != pair]
    others.sort(key=lambda row: (_RANK[row.verdict], -times(row), row.order))
    return [culprit, *others] if culprit is not None else others


def times(row: RowComparison) -> float:
    """Return the error in units of the noise floor."""
    if row.distance is None or row.distance.relative == 0.0:
        return 0.0
    return row.distance.relative / row.floor.relative if row.floor.relative else math.inf


def unmatched_sites(cards: Sequence[SiteCard]) -> Iterator[tuple[str, list[str]]]:
    """Yield the sites without counterpart with their ports, in execution order."""
    found: dict[str, list[str]] = {}
    for card in sorted(cards, key=lambda card: card.order):
        found.setdefault(card.spot.site, []).append(card.spot.port)
    yield from found.items()
