"""Two recordings in, one Comparison out. Both are streamed: a step of each is in memory at a time."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hypocenter.compare.aligned import Aligner
from hypocenter.compare.blame import Blame, blame
from hypocenter.compare.cards import Deck, deck
from hypocenter.compare.comparison import Comparison, Matching, Pair, SiteCard, Spot
from hypocenter.compare.distances.columns import distances
from hypocenter.compare.execution import is_of_update
from hypocenter.compare.judged import Judged
from hypocenter.compare.matching import match
from hypocenter.compare.noise import CALIBRATION, REPEATS, Noise
from hypocenter.compare.options import Options
from hypocenter.compare.outcome import Tally, outcome
from hypocenter.compare.rows import RunRows, StepRows
from hypocenter.compare.spots import Spots
from hypocenter.compare.step_alignment import shift_of
from hypocenter.compare.verdict import row_verdicts
from hypocenter.compare.worst import Worst
from hypocenter.record.reader import RecordedRun

_MOST_STEPS_BLAMED = 100  # steps with differences that nobody is to blame for; later ones are no clearer


@dataclass(slots=True)
class _Course:
    """What was found until now."""

    worst: Worst
    tally: Tally
    before: Judged | None = None
    found: Blame | None = None
    scene: Judged | None = None  # the step of the blame
    scene_before: Judged | None = None
    n_blamed: int = 0


def compare_runs(baseline: RecordedRun, candidate: RecordedRun, *, options: Options | None = None) -> Comparison:
    """Compare two recordings: the first place where they are apart by more than noise, or that they are not.

    Args:
        baseline: what is right.
        candidate: what is asked about.
        options: noise runs, budget, map, selection.

    Raises:
        HypocenterError: a recording cannot be read, or the map does not fit.
    """
    options = options or Options()
    decks = deck(baseline), deck(candidate)
    matching = options.matching or match(
        decks[0].cards, decks[1].cards, options.map, baseline_facts=baseline.facts(), candidate_facts=candidate.facts()
    )
    matching = _of_sites(matching, options.site)
    shift = _shift(baseline, candidate)
    course = _walk(baseline, candidate, decks, matching.pairs, shift, options)
    course.tally.shift = shift
    shapes = _shapes(matching.pairs, decks)
    return outcome(
        baseline, candidate, matching=matching, rows=course.worst.rows(shapes), tally=course.tally,
        blame=course.found, scene=course.scene, before=course.scene_before, options=options,
    )  # fmt: skip


def _walk(
    baseline: RecordedRun, candidate: RecordedRun, decks: tuple[Deck, Deck], pairs: Sequence[Pair], shift: int,
    options: Options,
) -> _Course:  # fmt: skip
    """Go through the steps that both runs have."""
    course = _Course(worst=Worst(pairs), tally=Tally())
    if not pairs:
        return course
    noise = _noise(pairs, decks[0].cards)
    runs = [RunRows(run, Spots()) for run in (baseline, candidate, *options.noise)]
    apart = Aligner(pairs, runs[0].spots, runs[1].spots)
    selves = [Pair(baseline=pair.baseline, candidate=pair.baseline, by="exact") for pair in pairs]
    others = [Pair(baseline=pair.candidate, candidate=pair.candidate, by="exact") for pair in pairs]
    repeats = [Aligner(selves, runs[0].spots, run.spots) for run in runs[2:]]
    own = Aligner(selves, runs[0].spots, runs[0].spots), Aligner(others, runs[1].spots, runs[1].spots)
    alike = np.array([pair.layout.kind in ("identity", "padded") for pair in pairs], np.bool_)
    for steps in _together(runs, shift):
        mine, theirs = steps[0], steps[1]
        if options.is_wanted is not None and not options.is_wanted(mine.step):
            continue
        for aligner, rows in zip(repeats, steps[2:], strict=True):
            if rows is not None:
                _learn(noise, aligner, mine.own, rows.own, REPEATS)
        for aligner, rows in zip(own, (mine, theirs), strict=True):
            for perturbed in rows.calibrations:
                _learn(noise, aligner, rows.own, perturbed, CALIBRATION)
        aligned = apart.align(mine.own, theirs.own)
        found = distances(aligned.baseline, aligned.candidate, same_shape=alike[aligned.pair])
        floors = noise.of(aligned.pair)
        judged = Judged(
            pairs=pairs, aligned=aligned, distances=found, floors=floors, budget=options.budget,
            verdicts=row_verdicts(found, floors, options.budget),
        )  # fmt: skip
        _take(course, judged)
    course.tally.floor_source = noise.source
    course.tally.problems = [problem for run in runs for problem in run.problems]
    return course


def _take(course: _Course, judged: Judged) -> None:
    course.tally.take(judged)
    course.worst.take(judged)
    if course.found is None or course.found.is_gradual:
        if judged.differs.any() and course.n_blamed < _MOST_STEPS_BLAMED:
            course.n_blamed += 1
            found = blame(judged, course.before, is_start=course.before is None)
            if found is not None and (course.found is None or not found.is_gradual):
                course.found, course.scene, course.scene_before = found, judged, course.before
        course.before = judged


def _learn(noise: Noise, aligner: Aligner, baseline: StepRows, other: StepRows, source: int) -> None:
    aligned = aligner.align(baseline, other)
    noise.learn(aligned.pair, distances(aligned.baseline, aligned.candidate), source)


def _together(runs: Sequence[RunRows], shift: int) -> Iterator[tuple[StepRows, StepRows, *tuple[StepRows | None, ...]]]:
    """Steps that baseline and candidate both have; with those of the repeats, None where one lacks it."""
    streams = [iter(run) for run in runs]
    shifts = [0, shift, *[0] * (len(runs) - 2)]
    heads: list[StepRows | None] = [next(stream, None) for stream in streams]
    while (first := heads[0]) is not None and (second := heads[1]) is not None:
        wanted = max(first.step, second.step - shift)
        for i, stream in enumerate(streams):
            head = heads[i]
            while head is not None and head.step - shifts[i] < wanted:
                head = next(stream, None)
            heads[i] = head
        first, second = heads[0], heads[1]
        if first is None or second is None:
            return
        if first.step == second.step - shift == wanted:
            rest = [head if head is not None and head.step == wanted else None for head in heads[2:]]
            yield (first, second, *rest)
            heads[0] = next(streams[0], None)


def _shift(baseline: RecordedRun, candidate: RecordedRun) -> int:
    losses: list[dict[int, float]] = []
    steps: list[list[int]] = []
    for run in (baseline, candidate):
        records = [record for rank, record in run.step_records() if rank == run.ranks[0]]
        losses.append({record.step: record.loss for record in records if record.loss is not None})
        steps.append(sorted({record.step for record in records}))
    return shift_of(losses[0], losses[1], (steps[0], steps[1]))


def _noise(pairs: Sequence[Pair], cards: Sequence[SiteCard]) -> Noise:
    of = {card.spot: card for card in cards}
    first = [of[pair.baseline[0]] for pair in pairs]
    return Noise(first, np.array([_is_exact(card.spot) for card in first], np.bool_))


def _is_exact(spot: Spot) -> bool:
    """What a program is given or told has no noise."""
    is_batch = spot.phase == "data" or (spot.phase == "forward" and spot.site == "" and spot.port.startswith("in"))
    is_rate = spot.phase == "optimizer" and spot.site != "clip_coef" and is_of_update(spot.site)
    return is_batch or is_rate


def _of_sites(matching: Matching, pattern: str) -> Matching:
    if not pattern:
        return matching
    pairs = [p for p in matching.pairs if any(fnmatch.fnmatchcase(spot.site, pattern) for spot in p.baseline)]
    return replace(matching, pairs=tuple(pairs))


def _shapes(pairs: Sequence[Pair], decks: tuple[Deck, Deck]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    mine, other = ({card.spot: card.shape for card in one.cards} for one in decks)
    return [(mine.get(pair.baseline[0], ()), other.get(pair.candidate[0], ())) for pair in pairs]
