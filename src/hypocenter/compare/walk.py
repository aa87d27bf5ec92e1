"""Both recordings step by step: aligned, measured against what is noise by then, judged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from hypocenter.compare.aligned import Aligner
from hypocenter.compare.cards import Deck
from hypocenter.compare.comparison import Pair, SiteCard, Spot
from hypocenter.compare.distances.columns import NONE, distances
from hypocenter.compare.distances.layouts import has_comparable_sketches
from hypocenter.compare.execution import is_of_update
from hypocenter.compare.first_bits import with_first_bits
from hypocenter.compare.judged import Judged
from hypocenter.compare.negligible import Negligible
from hypocenter.compare.noise import CALIBRATION, REPEATS, Noise
from hypocenter.compare.options import Options
from hypocenter.compare.over_ranks import OverRanks
from hypocenter.compare.rows import RunRows, StepRows
from hypocenter.compare.spots import Spots
from hypocenter.compare.values.depth import Depth
from hypocenter.compare.values.recorded import RecordedValues as Recorded
from hypocenter.compare.verdict import row_verdicts
from hypocenter.record.reader import RecordedRun


@dataclass(kw_only=True)
class Walk:
    """A way through two recordings; `noise` and `problems` are complete once all steps were taken.

    Args:
        runs: baseline and candidate.
        decks: of both.
        pairs: to compare.
        shift: what to add to a step of the baseline for the candidate's.
        options: noise runs, budget, steps.
    """

    runs: tuple[RecordedRun, RecordedRun]
    decks: tuple[Deck, Deck]
    pairs: Sequence[Pair]
    shift: int
    options: Options
    problems: list[str] = field(default_factory=list[str])
    left_out: set[int] = field(default_factory=set[int])  # pairs that ranks hold in ways that cannot be put together

    def __post_init__(self) -> None:
        of = self.decks[0].by_spot
        groups = [{rank: place.groups for rank, place in run.places.items()} for run in self.runs]
        self._has_same_ranks = groups[0] == groups[1]
        self._cards: list[SiteCard] = [of[pair.baseline[0]] for pair in self.pairs]
        use = self.options.use_values
        mine, theirs, *others = [Recorded(run, is_wanted=use) for run in (*self.runs, *self.options.noise)]
        self.values = Depth(baseline=mine, candidate=theirs, shift=self.shift)
        self.repeated = [Depth(baseline=mine, candidate=other) for other in others]
        self.noise = Noise(self._cards, np.array([_is_exact(card.spot) for card in self._cards], np.bool_))

    def __iter__(self) -> Iterator[Judged]:
        if not self.pairs:
            return
        decks = self.decks[0].by_spot, self.decks[1].by_spot
        rows = [RunRows(run, Spots()) for run in (*self.runs, *self.options.noise)]
        kinds = [_digest_kind(run) for run in (*self.runs, *self.options.noise)]
        for one, kind in zip(rows[1:], kinds[1:], strict=True):
            one.has_digests = kind == kinds[0]
        apart = Aligner(self.pairs, rows[0].spots, rows[1].spots, has_same_ranks=self._has_same_ranks)
        over_ranks = OverRanks(self.pairs, self.runs)
        selves = [_with_itself(pair, pair.baseline) for pair in self.pairs]
        twins = [_with_itself(pair, pair.candidate) for pair in self.pairs]
        repeats = [Aligner(selves, rows[0].spots, run.spots) for run in rows[2:]]
        own = Aligner(selves, rows[0].spots, rows[0].spots), Aligner(twins, rows[1].spots, rows[1].spots)
        alike = np.array([has_comparable_sketches(pair, *decks) for pair in self.pairs], np.bool_)
        padded = np.array([pair.layout.kind == "padded" for pair in self.pairs], np.bool_)
        wanted = self.options.is_wanted
        negligible = Negligible(self.pairs)
        modules = {number: self._cards[number].module for number in range(len(self.pairs))}
        n_noisy = 0
        for mine, theirs, others in together(rows, self.shift):
            if wanted is not None and not wanted(mine.step):
                continue
            for aligner, repeat, values in zip(repeats, others, self.repeated, strict=True):
                if repeat is not None:
                    self._learn(aligner, mine.own, repeat.own, REPEATS, mine.step, values)
            # The baseline's own noise, where it was measured: a candidate in a shorter format would excuse itself.
            aligner, side = (own[0], mine) if mine.calibrations else (own[1], theirs)
            for perturbed in side.calibrations:
                self._learn(aligner, side.own, perturbed, CALIBRATION, mine.step)
            aligned = apart.align(mine.own, theirs.own)
            is_alike = over_ranks.with_sketches(aligned, alike[aligned.pair])
            found = distances(aligned.baseline, aligned.candidate, same_shape=is_alike)
            if over_ranks.is_on:
                found.depth[over_ranks.has_other_size(aligned)] = NONE
            found.low[padded[aligned.pair]] = 0.0  # what the padding holds is not of the program
            self.values.deepen(self.pairs, aligned, found)
            floors = with_first_bits(aligned, found, self.noise.of(aligned.pair, aligned.step))
            n_noisy += int(((found.depth != NONE) & ~found.is_equal).sum())
            verdicts, is_negligible = negligible.judge(
                aligned, found, floors, row_verdicts(found, floors, self.options.budget, n_noisy)
            )
            yield Judged(
                pairs=self.pairs, aligned=aligned, distances=found, floors=floors, budget=self.options.budget,
                n=n_noisy, verdicts=verdicts, negligible=is_negligible, modules=modules,
            )  # fmt: skip
        self.left_out |= apart.left_out
        self.problems += over_ranks.notes
        self.problems += [note for run in rows for note in run.over_ranks.notes()]
        self.problems += [problem for run in rows for problem in run.problems]
        self.problems += [problem for values in (self.values, *self.repeated) for problem in values.problems]

    def _learn(
        self, aligner: Aligner, baseline: StepRows, other: StepRows, source: int, step: int, values: Depth | None = None
    ) -> None:
        aligned = aligner.align(baseline, other)
        found = distances(aligned.baseline, aligned.candidate)
        if values is not None:
            values.deepen(aligner.pairs, aligned, found)
        self.values.forget_bounds(found)
        self.noise.learn(aligned.pair, found, source, step)


def together(runs: Sequence[RunRows], shift: int) -> Iterator[tuple[StepRows, StepRows, list[StepRows | None]]]:
    """Steps that the first two runs both have; with those of the others, None where one lacks it.

    Args:
        runs: baseline, candidate, repeats of the baseline.
        shift: what to add to a step of the baseline for the candidate's.
    """
    streams = [iter(run) for run in runs]
    shifts = [0, shift, *[0] * (len(runs) - 2)]
    heads = [next(stream, None) for stream in streams]
    while True:
        mine, theirs = heads[0], heads[1]
        if mine is None or theirs is None:
            return
        wanted = max(mine.step, theirs.step - shift)
        for i, stream in enumerate(streams):
            head = heads[i]
            while head is not None and head.step - shifts[i] < wanted:
                head = next(stream, None)
            heads[i] = head
        mine, theirs = heads[0], heads[1]
        if mine is not None and theirs is not None and mine.step == theirs.step - shift:
            rest = [head if head is not None and head.step == mine.step else None for head in heads[2:]]
            yield mine, theirs, rest
            heads[0] = next(streams[0], None)


def _digest_kind(run: RecordedRun) -> str:
    """What the digests of a recording are: those of another kind say nothing beside them."""
    return run.run.imported.digest if run.run.imported is not None else "own"


def _with_itself(pair: Pair, spots: tuple[Spot, ...]) -> Pair:
    """One side of a pair in two runs of the same program; of copies one is enough, and has a sketch."""
    spots = spots[:1] if pair.layout.kind == "copies" else spots
    return Pair(baseline=spots, candidate=spots, by="exact")


def _is_exact(spot: Spot) -> bool:
    """What a program is given or told has no noise."""
    is_batch = spot.phase == "data" or (spot.phase == "forward" and spot.site == "" and spot.port.startswith("in"))
    is_rate = spot.phase == "optimizer" and spot.site != "clip_coef" and is_of_update(spot.site)
    return is_batch or is_rate
