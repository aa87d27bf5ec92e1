"""Both recordings step by step: aligned, measured against what is noise by then, judged.

What a row may be judged by depends on more than the row: where a run of many ranks stands against one of fewer, samples
come in another order; and the gradient of some parameters is nothing but rounding. The bias of attention keys is the
usual one: it changes no attention weight, its gradient differs wholly between two good runs, and an optimizer that
divides by the gradient's size makes full steps of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hypocenter.compare.aligned import Aligned, Aligner
from hypocenter.compare.cards import RunCards, cards_of
from hypocenter.compare.comparison import Comparison, Matching, Pair, RowComparison, SiteCard, Spot, are_exact
from hypocenter.compare.distances.columns import NONE, Distances, bound, distances
from hypocenter.compare.judged_step import JudgedStep, Worst
from hypocenter.compare.noise import CALIBRATION, REPEATS, Floors, Noise, with_first_bits
from hypocenter.compare.pairing.manual_map import ManualMap
from hypocenter.compare.rows import Flags, RunRows, Spots, StepRows
from hypocenter.compare.step_alignment import shift_between
from hypocenter.compare.values.depth import Depth
from hypocenter.compare.values.recorded import RecordedValues as Recorded
from hypocenter.compare.verdict import BUDGET, CANNOT_TELL, DIFFERS, row_verdicts
from hypocenter.record.reader import RecordedRun

_UNRELATED = 0.25  # relative error from which on two gradients have little in common
_OF_PARAMETERS = ("param", "grad", "optimizer")
_PHASES_OF_ACTIVATIONS = ("forward", "backward")


@dataclass(kw_only=True)
class JudgedSteps:
    """A way through two recordings; `noise` and `problems` are complete once all steps were taken.

    Args:
        runs: baseline and candidate.
        run_cards: of both.
        pairs: to compare.
        shift: what to add to a step of the baseline for the candidate's.
        options: noise runs, budget, steps.
    """

    runs: tuple[RecordedRun, RecordedRun]
    run_cards: tuple[RunCards, RunCards]
    pairs: Sequence[Pair]
    shift: int
    options: Options
    problems: list[str] = field(default_factory=list[str])
    left_out: set[int] = field(default_factory=set[int])  # pairs that ranks hold in ways that cannot be put together

    def __post_init__(self) -> None:
        of = self.run_cards[0].by_spot
        groups = [{rank: place.groups for rank, place in run.places.items()} for run in self.runs]
        self._has_same_ranks = groups[0] == groups[1]
        self._cards: list[SiteCard] = [of[pair.baseline[0]] for pair in self.pairs]
        use = self.options.use_values
        mine, theirs, *others = [Recorded(run, is_wanted=use) for run in (*self.runs, *self.options.noise)]
        self.values = Depth(baseline=mine, candidate=theirs, shift=self.shift)
        self.repeated = [Depth(baseline=mine, candidate=other) for other in others]
        self.noise = Noise(self._cards, np.array(are_exact([card.spot for card in self._cards]), np.bool_))

    def __iter__(self) -> Iterator[JudgedStep]:
        if not self.pairs:
            return
        run_cards = self.run_cards[0].by_spot, self.run_cards[1].by_spot
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
        alike = np.array([has_comparable_sketches(pair, *run_cards) for pair in self.pairs], np.bool_)
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
            if self.options.is_exact:
                verdicts[~found.is_equal & (found.depth != NONE)] = DIFFERS
            yield JudgedStep(
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
    """Yield the steps that the first two runs both have, with those of the other runs (None where one lacks it).

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
    """Return the kind of a recording's digests: those of another kind cannot be compared with them."""
    return run.run.imported.digest if run.run.imported is not None else "own"


def _with_itself(pair: Pair, spots: tuple[Spot, ...]) -> Pair:
    """Return a pair of one side's spots with themselves, for two runs of one program; of copies one is enough."""
    spots = spots[:1] if pair.layout.kind == "copies" else spots
    return Pair(baseline=spots, candidate=spots, by="exact")


class Negligible:
    """Knows which parameters have gradients that are nothing but noise, once these were seen.

    Args:
        pairs: of the matching.
    """

    def __init__(self, pairs: Sequence[Pair]) -> None:
        spots = [pair.baseline[0] for pair in pairs]
        self._is_gradient = np.array([s.phase == "grad" and s.port == "grad" for s in spots], np.bool_)
        sites = {site: number for number, site in enumerate(dict.fromkeys(spot.site for spot in spots))}
        self._site = np.array([sites[spot.site] for spot in spots], np.int64)
        self._is_of_parameter = np.array([spot.phase in _OF_PARAMETERS for spot in spots], np.bool_)
        self._known = np.zeros(len(sites), np.bool_)

    def judge(
        self, aligned: Aligned, distances: Distances, floors: Floors, verdicts: npt.NDArray[np.int8]
    ) -> tuple[npt.NDArray[np.int8], Flags]:
        """Return the verdicts, changed where rows of negligible parameters say nothing, and which rows these are."""
        pair = aligned.pair
        gradients = self._is_gradient[pair]
        sizes = np.maximum(aligned.baseline.values["sumsq"], aligned.candidate.values["sumsq"])
        whole = sizes[gradients].sum()
        is_known = ~(aligned.baseline.without("sumsq") | aligned.candidate.without("sumsq"))
        is_noise = gradients & is_known & (sizes <= floors.relative**2 * whole) & (distances.relative > _UNRELATED)
        before = self._known.copy()
        self._known[self._site[pair[is_noise]]] = True
        rows = before[self._site[pair]] & self._is_of_parameter[pair]  # what an update with such a gradient made
        rows |= self._known[self._site[pair]] & gradients
        rows &= (verdicts == DIFFERS) | (verdicts == CANNOT_TELL)
        return np.where(rows, CANNOT_TELL, verdicts).astype(np.int8), rows


class OverRanks:
    """Knows which rows to compare in which way over ranks. Of two runs of one process each all stays as it is.

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
        self._is_activation = np.array([spot.phase in _PHASES_OF_ACTIVATIONS for spot in spots], np.bool_)
        self._is_batch = np.array(
            [s.phase == "forward" and s.site == "" and s.port.startswith("in") for s in spots], np.bool_
        )
        self._is_whole = np.array([pair.layout.kind == "identity" for pair in pairs], np.bool_)
        self.notes: list[str] = []

    def with_sketches(self, aligned: Aligned, alike: Flags) -> Flags:
        """Return which rows may be compared by sketches: no activations when samples come in another order."""
        if not self.is_on or not self._is_reordered(aligned):
            return alike
        note = "the samples of a batch come in another order: activations are compared by sums and extremes alone"
        self.notes += [note] if note not in self.notes else []
        return alike & ~self._is_activation[aligned.pair]

    def _is_reordered(self, aligned: Aligned) -> bool:
        """Return whether the model was given the same numbers in another order."""
        at = np.flatnonzero(self._is_batch[aligned.pair])
        mine, other = aligned.baseline.take(at), aligned.candidate.take(at)
        both = np.intersect1d(mine.sketched, other.sketched)
        if mine.sketch is None or other.sketch is None or not len(both):
            return False
        here, there = np.searchsorted(mine.sketched, both), np.searchsorted(other.sketched, both)
        differs = (mine.sketch[here] != other.sketch[there]).any(axis=1)
        return bool((differs & bound(mine, other).is_identical[both]).any())

    def has_other_size(self, aligned: Aligned) -> Flags:
        """Return which rows are activations whose ranks together hold more or less than the other side: wrongly merged.

        How activations lie over ranks is told by their sizes, which can be taken for something that they are not.
        """
        pair = aligned.pair
        guessed = self._is_activation[pair] & ~self._is_batch[pair] & self._is_whole[pair]
        return guessed & (aligned.baseline.counts["n"] != aligned.candidate.counts["n"])


def has_comparable_sketches(pair: Pair, baseline: Mapping[Spot, SiteCard], candidate: Mapping[Spot, SiteCard]) -> bool:
    """Return whether equal values give equal sketches on both sides.

    A sketch knows rows and columns by their numbers: the last dimension is the columns, all others together the rows.
    Padding at the end of rows or columns leaves the numbers of what is before it, where only the first dimension or the
    last one grows.
    """
    layout = pair.layout
    if layout.swapped or (len(pair.baseline) + len(pair.candidate) > 2 and layout.kind != "copies"):
        return False
    shapes = [cards[spots[0]].shape for cards, spots in ((baseline, pair.baseline), (candidate, pair.candidate))]
    if layout.kind == "reshaped":
        return all(len(shape) > 1 for shape in shapes) and shapes[0][-1] == shapes[1][-1]
    if layout.kind == "padded":
        return all(len(shape) > 1 for shape in shapes) and layout.dim in (0, len(shapes[0]) - 1)
    return layout.kind in ("identity", "copies")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How `compare_runs` compares."""

    noise: Sequence[RecordedRun] = ()  # repeats of the baseline
    budget: float = BUDGET  # up to budget × floor an error is noise
    map: ManualMap | None = None
    matching: Matching | None = None  # found before; else it is searched
    is_wanted: Callable[[int], bool] | None = None  # steps of the baseline to compare; all when not given
    site: str = ""  # shell pattern of the baseline's sites to compare
    use_values: bool = True  # of level tensors, where both sides hold them
    plugins: tuple[str, ...] = ()  # files with more fits
    shift: int | None = None  # what to add to a step of the baseline for the candidate's; else it is searched
    is_exact: bool = False  # a good candidate is equal to the bit: whatever is not equal differs


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstStep:
    """What a page shows beside the answer: the rows of the step of the first difference, and all cards."""

    step: int | None = None  # of the baseline; None: nothing to look at by itself
    rows: tuple[RowComparison, ...] = ()  # of that step, the worst micro-batch of each pair, in the order of the pairs
    cards: tuple[tuple[SiteCard, ...], tuple[SiteCard, ...]] = ((), ())  # all spots of both runs, in execution order


def first_step_of(
    found: Comparison, baseline: RecordedRun, candidate: RecordedRun, options: Options | None = None
) -> FirstStep:
    """Read both recordings again up to the step of the first difference, and keep its rows.

    Args:
        found: what `compare_runs` said of these runs with these options.

    Raises:
        HypocenterError: a recording cannot be read.
    """
    run_cards = cards_of(baseline), cards_of(candidate)
    cards = run_cards[0].cards, run_cards[1].cards
    if found.first is None:
        return FirstStep(cards=cards)
    step = found.first.row.step if found.first.row is not None else found.first.step
    pairs = found.matching.pairs
    steps = JudgedSteps(
        runs=(baseline, candidate), run_cards=run_cards, pairs=pairs, shift=shift_between(baseline, candidate),
        options=options or Options(),
    )  # fmt: skip
    worst = Worst(pairs)
    for judged in steps:  # from the start: what is noise is learnt on the way
        if judged.aligned.step == step:
            worst.take(judged)
            break
    return FirstStep(step=step, rows=tuple(worst.rows(_shapes_of(found, run_cards))), cards=cards)


def _shapes_of(
    found: Comparison, run_cards: tuple[RunCards, RunCards]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    mine, other = (side.by_spot for side in run_cards)
    return [(mine[pair.baseline[0]].shape, other[pair.candidate[0]].shape) for pair in found.matching.pairs]
