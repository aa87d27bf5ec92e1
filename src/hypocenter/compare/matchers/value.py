"""Spots that hold the same values, by sketch, or by norm, largest magnitude and histogram; only where one alone does.

Values are looked at last: where both runs are right they agree, where one is wrong they may not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from hypocenter.compare.comparison import Pair, SiteCard
from hypocenter.compare.pairing.chain import Task, matcher
from hypocenter.compare.pairing.layouts import is_parameter, kind_of, layout_of
from hypocenter.compare.pairing.ports import direction
from hypocenter.compare.pairing.sameness import FAR, NEAR, distances, is_telling

_AT_MOST_CELLS = 4_000_000  # of one shape: 2,000 against 2,000
_CERTAINTY = 0.5


@matcher("value", order=50)
def pair(task: Task) -> Iterator[Pair]:
    """Pair mutual nearest neighbours of the same phase, direction and shape."""
    ours, theirs = _grouped(task.baseline), _grouped(task.candidate)
    for key, mine in ours.items():
        yours = theirs.get(key, [])
        if yours and len(mine) * len(yours) <= _AT_MOST_CELLS:
            yield from _nearest(mine, yours)


def _grouped(cards: Sequence[SiteCard]) -> dict[object, list[SiteCard]]:
    groups: dict[object, list[SiteCard]] = defaultdict(list)
    for card in cards:
        if is_telling(card) and kind_of(card.dtype) == "float":
            spot = card.spot
            port = spot.port if is_parameter(card) else direction(spot.port)
            groups[(spot.phase, port, spot.call, tuple(sorted(card.shape)))].append(card)
    return groups


def _nearest(ours: Sequence[SiteCard], theirs: Sequence[SiteCard]) -> Iterator[Pair]:
    apart = distances(ours, theirs)
    for i, row in enumerate(apart):
        j = int(row.argmin())
        others = min(np.delete(row, j).min(initial=np.inf), np.delete(apart[:, j], i).min(initial=np.inf))
        layout = layout_of(ours[i], theirs[j]) if row[j] <= NEAR and others >= FAR else None
        if layout:
            yield Pair(
                baseline=(ours[i].spot,),
                candidate=(theirs[j].spot,),
                by="value",
                layout=layout,
                why="holds the same values, and nothing else of this shape does",
                certainty=_CERTAINTY,
            )
