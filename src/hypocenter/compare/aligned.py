"""Rows of two runs at one step, put side by side: the n-th row of one is the n-th of the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hypocenter.compare.comparison import Pair, Side, Spot, stages_of
from hypocenter.compare.rows import Flags, Ints, Reals, Spots, StepRows

_MOST_LANES, _MOST_MICROBATCHES = 1 << 20, 1 << 20  # ranks and micro-batches of a step: a key of three in 63 bits
_OF_STEP = ("param", "optimizer", "grad", "scaler")  # seen once a step, with whatever micro-batch was the last


@dataclass(frozen=True, slots=True, kw_only=True)
class Aligned:
    """Paired rows of a step in the order in which a difference travels: STAGES, then the baseline's execution order."""

    step: int
    pair: Ints  # number of the pair
    stage: Ints
    baseline: StepRows
    candidate: StepRows

    def __len__(self) -> int:
        return len(self.pair)


class PairIndex:
    """Which pair a spot of one side belongs to.

    Args:
        pairs: of both sides.
        side: the one to look from.
        spots: numbers of this side's spots; grows while the recording is read.
    """

    def __init__(self, pairs: Sequence[Pair], side: Side, spots: Spots) -> None:
        self._spots = spots
        self._of: dict[Spot, tuple[int, int]] = {}
        parts = [_parts(pair, side) for pair in pairs]
        self.n_parts = np.array([len(one) for one in parts], np.int64)
        for number, spots_of_pair in enumerate(parts):
            for part, spot in enumerate(spots_of_pair):
                self._of[spot] = (number, part)
        self._pair = np.empty(0, np.int64)

    def pairs_of(self, spot: Ints) -> Ints:
        """Return for each number of a spot the number of the pair that it belongs to, or -1 where it has none."""
        if len(self._pair) < len(self._spots.known):
            new = self._spots.known[len(self._pair) :]
            more = np.fromiter((self._of.get(one, (-1, 0))[0] for one in new), np.int64, len(new))
            self._pair = np.concatenate([self._pair, more])
        return self._pair[spot]


def _parts(pair: Pair, side: Side) -> tuple[Spot, ...]:
    """Return the spots whose rows make up this side of the pair; of copies of one value only the first."""
    spots: tuple[Spot, ...] = getattr(pair, side)
    return spots[:1] if pair.layout.kind == "copies" else spots


class Aligner:
    """Puts steps of two runs side by side.

    Args:
        pairs: of the matching.
        baseline, candidate: numbers of the spots of both runs.
        has_same_ranks: rank by rank both runs hold the same parts.

    Attributes:
        left_out: pairs of which a rank has a tensor of its own that has no counterpart.
    """

    def __init__(
        self, pairs: Sequence[Pair], baseline: Spots, candidate: Spots, *, has_same_ranks: bool = True
    ) -> None:
        self.pairs = pairs
        self.left_out: set[int] = set()
        self._has_same_ranks = has_same_ranks
        self._stage = np.array(stages_of([pair.baseline[0] for pair in pairs]), np.int64)
        self._is_of_step = np.array([pair.baseline[0].phase in _OF_STEP for pair in pairs], np.bool_)
        self._sides = PairIndex(pairs, "baseline", baseline), PairIndex(pairs, "candidate", candidate)

    def align(self, baseline: StepRows, candidate: StepRows) -> Aligned:
        """Return the rows that both sides have at this step; parts of fused or split tensors are added up to one."""
        lanes_differ = int(baseline.lane.max(initial=0)) != int(candidate.lane.max(initial=0))
        lanes_differ |= not self._has_same_ranks
        left, left_pair = self._of_side(baseline, 0, lanes_differ)
        right, right_pair = self._of_side(candidate, 1, lanes_differ)
        _, mine, other = np.intersect1d(self._keys(left, left_pair), self._keys(right, right_pair), return_indices=True)
        stage = self._stage[left_pair[mine]] if len(mine) else np.empty(0, np.int64)
        order = np.lexsort((left.lane[mine], left.order[mine], stage))
        mine, other = mine[order], other[order]
        return Aligned(
            step=baseline.step, pair=left_pair[mine], stage=stage[order],
            baseline=left.take(mine), candidate=right.take(other),
        )  # fmt: skip

    def _of_side(self, rows: StepRows, side: int, without_lanes: bool) -> tuple[StepRows, Ints]:
        index = self._sides[side]
        if without_lanes:  # other ranks on the other side: only what is one tensor over all ranks has a counterpart
            pair = index.pairs_of(rows.spot)
            several = np.unique(pair[(pair >= 0) & (rows.lane > 0)])
            self.left_out.update(several.tolist())
            rows = rows.take(np.flatnonzero(~np.isin(pair, several)))
        return _of_pairs(rows, index)

    def _keys(self, rows: StepRows, pair: Ints) -> Ints:
        return _key(pair, np.where(self._is_of_step[pair], 0, rows.microbatch), rows.lane)


def _key(pair: Ints, microbatch: Ints, lane: Ints) -> Ints:
    return (pair * _MOST_MICROBATCHES + microbatch) * _MOST_LANES + lane


def _of_pairs(rows: StepRows, index: PairIndex) -> tuple[StepRows, Ints]:
    """Return one row for each pair, micro-batch and lane that has rows, and the numbers of these pairs."""
    pair = index.pairs_of(rows.spot)
    mine = pair >= 0
    at = np.flatnonzero(mine)
    rows, pair = rows.take(at), pair[at]
    if (index.n_parts[pair] == 1).all():
        return rows, pair
    return _joined(rows, pair, index.n_parts[pair] > 1, index.n_parts)


def _joined(rows: StepRows, pair: Ints, is_part: Flags, n_parts: Ints) -> tuple[StepRows, Ints]:
    """Join the parts of each fused tensor into one row; where a part is missing, the tensor gets no row."""
    single, parts = np.flatnonzero(~is_part), np.flatnonzero(is_part)
    keys = _key(pair, rows.microbatch, rows.lane)[parts]
    parts = parts[np.argsort(keys, kind="stable")]
    keys = np.sort(keys)
    starts = np.flatnonzero(np.concatenate([[True], np.diff(keys) != 0]))
    complete = np.diff(np.append(starts, len(keys))) == n_parts[pair[parts[starts]]]
    whole = _added(rows.take(parts), starts)
    first = parts[starts]
    return _stacked(rows.take(single), whole.take(np.flatnonzero(complete))), np.concatenate(
        [pair[single], pair[first[complete]]]
    )


def _added(rows: StepRows, starts: Ints) -> StepRows:
    """Add up each run of rows (the parts of one tensor) to one row; `starts` are the indices where the runs begin."""
    firsts = rows.take(starts)
    values: dict[str, Reals] = {}
    for name, column in rows.values.items():
        how = np.fmin if name == "min" else np.fmax if name in ("max", "absmax") else np.add
        values[name] = how.reduceat(column, starts)
    return replace(
        firsts, values=values, counts={n: np.add.reduceat(c, starts) for n, c in rows.counts.items()},
        has_digest=np.zeros(len(starts), np.bool_), sketch=None, sketched=np.empty(0, np.int64),
        is_bound=np.logical_or.reduceat(rows.is_bound, starts),
        literal_inf=np.logical_or.reduceat(rows.literal_inf, starts),
    )  # fmt: skip


def _stacked(upper: StepRows, lower: StepRows) -> StepRows:
    """Concatenate the rows of both; only those of `upper` keep their sketches."""
    both = {
        name: np.concatenate([getattr(upper, name), getattr(lower, name)])
        for name in ("spot", "microbatch", "lane", "order", "dtype", "digest", "has_digest", "literal_inf", "is_bound",
                     "calibration")
    }  # fmt: skip
    return replace(
        upper, **both, counts={n: np.concatenate([c, lower.counts[n]]) for n, c in upper.counts.items()},
        values={n: np.concatenate([c, lower.values[n]]) for n, c in upper.values.items()},
    )  # fmt: skip
