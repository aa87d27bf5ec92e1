"""What a chart needs of a comparison: few points, each the mean of those it stands for."""

from __future__ import annotations

import numpy as np

from hypocenter.compare.curves.comparison import Track
from hypocenter.compare.curves.curve import Values
from hypocenter.compare.curves.evidence import Evidence

POINTS = 240  # wider than a sparkline and a small chart


def track_of(found: Evidence) -> Track:
    """Baseline, candidate, difference and floor over at most 240 spans of steps."""
    pair, n = found.pair, len(found.pair.steps)
    edges = np.unique(np.linspace(0, n, min(n, POINTS) + 1).astype(int))
    floor = np.concatenate((np.full(n - len(found.floor), found.floor[0]), found.floor))
    return Track(
        steps=tuple(int(pair.steps[stop - 1]) for stop in edges[1:]), baseline=_means(pair.baseline, edges),
        candidate=_means(pair.candidate, edges), difference=_means(found.difference, edges),
        floor=_means(floor, edges),
    )  # fmt: skip


def _means(values: Values, edges: np.ndarray) -> tuple[float, ...]:
    total = np.concatenate(([0.0], np.cumsum(values)))
    return tuple(float(mean) for mean in (total[edges[1:]] - total[edges[:-1]]) / np.diff(edges))
