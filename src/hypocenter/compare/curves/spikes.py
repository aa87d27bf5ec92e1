"""Values far above those around them, and the batch that was there."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from hypocenter.compare.curves.align import Aligned
from hypocenter.compare.curves.comparison import Spike
from hypocenter.compare.curves.curve import Steps, Values
from hypocenter.compare.curves.statistics import robust_spread, running_median

_WINDOW = 65  # points around a value
_BEFORE = 8  # points before a value that it must stand out from too: the first descent of a run is no spike
_NEAR = 1  # aligned points between spikes of both sides that are one
SHOWN = 20  # largest ones kept


def spikes_of(steps: Steps, values: Values, limit: float) -> list[Spike]:
    """Points more than `limit` robust standard deviations above the running median; of neighbours the highest."""
    if len(values) < 16:
        return []
    usual = running_median(values, min(_WINDOW, len(values) // 2 * 2 - 1))
    excess = values - usual
    spread = np.maximum(_local_spread(excess), 1e-12 + 1e-6 * np.abs(usual))
    size = np.minimum(excess, values - _level_before(values)) / spread
    found: list[Spike] = []
    for at in np.flatnonzero(size > limit):
        spike = Spike(
            side="candidate", step=int(steps[at]), value=float(values[at]), usual=float(usual[at]), size=float(size[at])
        )
        if found and steps[at] - found[-1].step <= 5 * max(1, int(np.median(np.diff(steps)))):
            if spike.value > found[-1].value:
                found[-1] = spike
            continue
        found.append(spike)
    return found


def _level_before(values: Values) -> Values:
    """The median of the few values before each one; the first ones are their own."""
    out = values.copy()
    windows = np.lib.stride_tricks.sliding_window_view(values[:-1], _BEFORE)
    out[_BEFORE:] = np.median(windows, axis=1)
    return out


def _local_spread(excess: Values) -> Values:
    """Robust spread in blocks of an eighth: the unrest of a run changes as it goes on."""
    n = len(excess)
    edges = np.linspace(0, n, min(8, max(1, n // 32)) + 1).astype(int)
    overall = robust_spread(excess)
    out = np.full(n, overall)
    for low, high in pairwise(edges):
        out[low:high] = max(robust_spread(excess[low:high]), overall / 4)
    return out


def spikes_of_both(pair: Aligned, limit: float, digests: dict[int, str], others: dict[int, str]) -> list[Spike]:
    """Spikes of either side, one entry where both have one, largest first, with the digest of the batch there.

    Args:
        digests: of the candidate's batches, by step.
        others: of the baseline's.
    """
    mine = spikes_of(pair.steps, pair.candidate, limit)
    theirs = spikes_of(pair.steps, pair.baseline, limit)
    index = {int(step): i for i, step in enumerate(pair.steps)}
    found: list[Spike] = []
    for spike in mine:
        twin = next((t for t in theirs if abs(index[t.step] - index[spike.step]) <= _NEAR), None)
        if twin is not None:
            theirs.remove(twin)
        side = "candidate" if twin is None else "both"
        found.append(replace(spike, side=side, digest=digests.get(spike.step)))
    found += [replace(spike, side="baseline", digest=others.get(spike.step)) for spike in theirs]
    return sorted(found, key=lambda spike: -spike.size)
