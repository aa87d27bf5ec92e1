"""Spots that hold the same values, by statistics and sketch: only those with one candidate by far.

Values are looked at last: where both runs are right they agree, where one is wrong they may not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from hypocenter.compare.comparison import Pair, SiteCard
from hypocenter.compare.pairing.chain import Task, matcher
from hypocenter.compare.pairing.layouts import is_parameter, kind_of, layout_of
from hypocenter.compare.pairing.ports import direction

_NEAR = 1e-2  # relative: as far as two good runs in bfloat16 are apart after a few layers (bfloat16: 2^-8 an operation)
_FAR = 5e-2  # the next best must be this far away
_LEAST_ELEMENTS = 16  # fewer have too few statistics to be told apart
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
        if _says_something(card):
            spot = card.spot
            port = spot.port if is_parameter(card) else direction(spot.port)
            groups[(spot.phase, port, spot.call, tuple(sorted(card.shape)), kind_of(card.dtype))].append(card)
    return groups


def _says_something(card: SiteCard) -> bool:
    """Whether a value can be told from others: not a constant, and floating point."""
    if card.n < _LEAST_ELEMENTS or kind_of(card.dtype) != "float" or not 0.0 < card.sumsq < np.inf:
        return False
    return card.sumsq < 0.999 * card.n * card.absmax**2  # all of one magnitude: a fresh norm weight, a mask


def _nearest(ours: Sequence[SiteCard], theirs: Sequence[SiteCard]) -> Iterator[Pair]:
    apart = _distances(ours, theirs)
    for i, row in enumerate(apart):
        j = int(row.argmin())
        column = apart[:, j]
        if (
            row[j] > _NEAR
            or np.delete(row, j).min(initial=np.inf) < _FAR
            or np.delete(column, i).min(initial=np.inf) < _FAR
        ):
            continue
        layout = layout_of(ours[i], theirs[j])
        if layout:
            yield Pair(
                baseline=(ours[i].spot,),
                candidate=(theirs[j].spot,),
                by="value",
                layout=layout,
                why=f"same values within {max(row[j], 1e-7):.1g}, all others further than {_FAR:g}",
                certainty=_CERTAINTY,
            )


def _distances(ours: Sequence[SiteCard], theirs: Sequence[SiteCard]) -> NDArray[np.float64]:
    """How far each is from each other: the largest of what norm, largest magnitude, histogram and sketch say."""
    apart = np.zeros((len(ours), len(theirs)))
    for mine, yours in (
        (np.sqrt([c.sumsq for c in ours]), np.sqrt([c.sumsq for c in theirs])),
        (np.array([c.absmax for c in ours]), np.array([c.absmax for c in theirs])),
    ):
        a, b = mine[:, None], yours[None, :]
        apart = np.maximum(apart, np.abs(a - b) / np.maximum(np.maximum(a, b), np.finfo(np.float64).tiny))
    for i, j in zip(*np.nonzero(apart <= _FAR), strict=True):
        apart[i, j] = max(apart[i, j], _histograms(ours[i], theirs[j]), _sketches(ours[i], theirs[j]))
    return apart


def _histograms(a: SiteCard, b: SiteCard) -> float:
    """Share of the elements that lie in another power of two; 0 when one side has no histogram."""
    if not a.hist or not b.hist:
        return 0.0
    first = min(a.hist_first, b.hist_first)
    counts = np.zeros((2, max(a.hist_first + len(a.hist), b.hist_first + len(b.hist)) - first))
    for row, card in zip(counts, (a, b), strict=True):
        row[card.hist_first - first : card.hist_first - first + len(card.hist)] = card.hist
    totals = counts.sum(axis=1, keepdims=True)
    return float(np.abs(np.subtract(*(counts / np.maximum(totals, 1)))).sum() / 2)


def _sketches(a: SiteCard, b: SiteCard) -> float:
    """Relative error by sketch; 0 when it cannot be known."""
    if a.sketch is None or b.sketch is None or a.shape != b.shape:
        return 0.0
    mine, yours = np.array(a.sketch), np.array(b.sketch)
    size = max(float(np.linalg.norm(mine)), float(np.linalg.norm(yours)))
    return float(np.linalg.norm(mine - yours)) / size if size else 0.0
