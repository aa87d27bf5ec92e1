"""Whether spots hold the very same values, as far as recordings tell.

Norms alone prove nothing: two random matrices of 4096 × 4096 have the same norm to 2 in 10,000. A sketch does, and so
do norm and largest magnitude together when both agree to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hypocenter.compare.comparison import SiteCard

NEAR = 1e-2  # of a sketch: as far as two good runs in bfloat16 are apart after a few layers (2^-8 an operation)
FAR = 0.5  # unrelated tensors of equal norm are sqrt(2) apart
_STATISTICS = 1e3  # 1e-5 of norm and largest magnitude says as much as 1e-2 of a sketch
_HISTOGRAM = 10.0  # and so does one element of a thousand in another power of two
_LEAST_ELEMENTS = 16  # fewer have too few statistics to be told apart
_LARGEST = 1e150  # the square of which is a float


def is_telling(card: SiteCard) -> bool:
    """Return whether a value can be told from others: not empty, not of one magnitude (a fresh norm weight, a mask)."""
    if card.n < _LEAST_ELEMENTS or not 0.0 < card.sumsq < _LARGEST or not 0.0 < card.absmax < _LARGEST:
        return False
    return card.sumsq < 0.999 * card.n * card.absmax**2


def distances(ours: Sequence[SiteCard], theirs: Sequence[SiteCard]) -> NDArray[np.float64]:
    """Return how far each is from each other: below NEAR the same values, above FAR others; infinite if not known."""
    apart = np.zeros((len(ours), len(theirs)))
    for mine, yours in ((_norms(ours), _norms(theirs)), (_largest(ours), _largest(theirs))):
        a, b = mine[:, None], yours[None, :]
        apart = np.maximum(apart, _STATISTICS * np.abs(a - b) / np.maximum(np.maximum(a, b), np.finfo(np.float64).tiny))
    by_sketch = _sketched(ours, theirs)
    apart = np.where(np.isnan(by_sketch), apart, by_sketch)
    for i, j in zip(*np.nonzero((apart <= FAR) & np.isnan(by_sketch)), strict=True):
        apart[i, j] = max(apart[i, j], _HISTOGRAM * _histograms(ours[i], theirs[j]))
    told = np.array([is_telling(c) for c in ours], dtype=bool)[:, None]
    return np.where(told & np.array([is_telling(c) for c in theirs], dtype=bool)[None, :], apart, np.inf)


def _norms(cards: Sequence[SiteCard]) -> NDArray[np.float64]:
    return np.array([math.sqrt(c.sumsq) if is_telling(c) else 0.0 for c in cards], dtype=np.float64)


def _largest(cards: Sequence[SiteCard]) -> NDArray[np.float64]:
    return np.array([c.absmax if is_telling(c) else 0.0 for c in cards], dtype=np.float64)


def _sketched(ours: Sequence[SiteCard], theirs: Sequence[SiteCard]) -> NDArray[np.float64]:
    """Return the relative errors by sketch; NaN where one has no sketch, or another shape."""
    result = np.full((len(ours), len(theirs)), np.nan)
    for shape in {card.shape for card in ours if card.sketch}:
        rows = [i for i, c in enumerate(ours) if c.sketch and c.shape == shape and is_telling(c)]
        columns = [j for j, c in enumerate(theirs) if c.sketch and c.shape == shape and is_telling(c)]
        if not rows or not columns or len({len(c.sketch or ()) for c in (*ours, *theirs) if c.sketch}) != 1:
            continue
        a = np.nan_to_num(np.array([ours[i].sketch for i in rows], dtype=np.float64))
        b = np.nan_to_num(np.array([theirs[j].sketch for j in columns], dtype=np.float64))
        sizes = np.maximum((a * a).sum(axis=1)[:, None], (b * b).sum(axis=1)[None, :])
        squares = (a * a).sum(axis=1)[:, None] + (b * b).sum(axis=1)[None, :] - 2 * a @ b.T
        result[np.ix_(rows, columns)] = np.sqrt(np.maximum(squares, 0.0) / np.maximum(sizes, np.finfo(np.float64).tiny))
    return result


def _histograms(a: SiteCard, b: SiteCard) -> float:
    """Return the share of elements that lie in another power of two; 0 when one side has no histogram."""
    if not a.hist or not b.hist:
        return 0.0
    first = min(a.hist_first, b.hist_first)
    counts = np.zeros((2, max(a.hist_first + len(a.hist), b.hist_first + len(b.hist)) - first))
    for row, card in zip(counts, (a, b), strict=True):
        row[card.hist_first - first : card.hist_first - first + len(card.hist)] = card.hist
    totals = np.maximum(counts.sum(axis=1, keepdims=True), 1)
    shares = counts / totals
    return float(np.abs(shares[0] - shares[1]).sum() / 2)
