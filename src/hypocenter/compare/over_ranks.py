"""What to beware of when a run of many ranks stands against one of fewer, or of other ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hypocenter.compare.aligned import Aligned
from hypocenter.compare.comparison import Pair
from hypocenter.compare.distances.summary import bound
from hypocenter.compare.rows import Flags
from hypocenter.record.reader import RecordedRun

_ACTIVATIONS = ("forward", "backward")


class OverRanks:
    """Knows which rows to compare in which way. Of two runs of one process each all stays as it is.

    Args:
        pairs: of the matching.
        runs: baseline and candidate.

    Attributes:
        is_on: one of the runs has several ranks.
        notes: what was seen.
    """

    def __init__(self, pairs: Sequence[Pair], runs: Sequence[RecordedRun]) -> None:
        spots = [pair.baseline[0] for pair in pairs]
        self.is_on = any(len(run.ranks) > 1 for run in runs)
        self._is_activation = np.array([spot.phase in _ACTIVATIONS for spot in spots], np.bool_)
        self._is_batch = np.array(
            [s.phase == "forward" and s.site == "" and s.port.startswith("in") for s in spots], np.bool_
        )
        self._is_whole = np.array([pair.layout.kind == "identity" for pair in pairs], np.bool_)
        self.notes: list[str] = []

    def with_sketches(self, aligned: Aligned, alike: Flags) -> Flags:
        """Which rows may be compared by sketches: no activations, where samples come in another order."""
        if not self.is_on or not self._is_reordered(aligned):
            return alike
        note = "the samples of a batch come in another order: activations are compared by sums and extremes alone"
        self.notes += [note] if note not in self.notes else []
        return alike & ~self._is_activation[aligned.pair]

    def _is_reordered(self, aligned: Aligned) -> bool:
        """Whether the model was given the same numbers in another order."""
        at = np.flatnonzero(self._is_batch[aligned.pair])
        mine, other = aligned.baseline.take(at), aligned.candidate.take(at)
        both = np.intersect1d(mine.sketched, other.sketched)
        if mine.sketch is None or other.sketch is None or not len(both):
            return False
        here, there = np.searchsorted(mine.sketched, both), np.searchsorted(other.sketched, both)
        differs = (mine.sketch[here] != other.sketch[there]).any(axis=1)
        return bool((differs & bound(mine, other).is_identical[both]).any())

    def has_other_size(self, aligned: Aligned) -> Flags:
        """Activations of which the ranks together hold more or less than the other side: not put together rightly.

        How activations lie over ranks is told by their sizes, which can be taken for something that they are not.
        """
        pair = aligned.pair
        guessed = self._is_activation[pair] & ~self._is_batch[pair] & self._is_whole[pair]
        return guessed & (aligned.baseline.counts["n"] != aligned.candidate.counts["n"])
