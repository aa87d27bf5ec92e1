"""Two recordings in, one Comparison out. Both are streamed: a step of each is in memory at a time."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypocenter.compare.blame import Blame, amplifications, blame
from hypocenter.compare.cards import Deck, deck
from hypocenter.compare.case import PairedRow, case_of, paired_rows
from hypocenter.compare.comparison import Comparison, Matching, Pair
from hypocenter.compare.fitting import accepted
from hypocenter.compare.judged import Judged, Worst
from hypocenter.compare.matching import match, without_slid_calls
from hypocenter.compare.outcome import (
    Tally,
    not_put_together,
    or_an_unseen_update,
    outcome,
    settings_apart,
    with_fit,
    with_uncompared,
)
from hypocenter.compare.step_alignment import shift_between
from hypocenter.compare.values.bits import Array
from hypocenter.compare.verdict import CANNOT_TELL
from hypocenter.compare.walk import Options, Walk
from hypocenter.nouns import Source
from hypocenter.record.facts_file import Facts
from hypocenter.record.reader import RecordedRun

_SILENT = (
    "the repeats are equal to the baseline to the bit: they say nothing of another device or thread count, and the "
    "noise floor is assumed"
)
_RUN_BY_MODULES = ("forward", "loss", "backward")  # phases in which the line where a module begins is the place to look
_MOST_STEPS_BLAMED = 100  # steps with differences that nobody is to blame for; later ones are no clearer
Shapes = tuple[tuple[int, ...], tuple[int, ...]]  # of baseline and candidate


@dataclass(slots=True)
class _Course:
    """What was found until now."""

    worst: Worst
    tally: Tally
    facts: tuple[Facts | None, Facts | None]
    before: Judged | None = None
    found: Blame | None = None
    scene: Judged | None = None  # the step of the blame
    scene_before: Judged | None = None
    unclear: Judged | None = None  # the last step with differences, else the first with doubts
    n_blamed: int = 0

    def take(self, judged: Judged) -> None:
        """Look at the next step; the first culprit stays."""
        self.tally.take(judged)
        if (self.unclear is None and (judged.verdicts == CANNOT_TELL).any()) or judged.differs.any():
            self.unclear = judged
        self.worst.take(judged)
        if self.found is not None and not self.found.is_gradual:
            return
        if judged.differs.any() and self.n_blamed < _MOST_STEPS_BLAMED:
            self.n_blamed += 1
            found = blame(judged, self.before, is_start=self.before is None, facts=self.facts)
            if found is not None and (self.found is None or not found.is_gradual):
                self.found, self.scene, self.scene_before = found, judged, self.before
        self.before = judged


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
    runs, decks = (baseline, candidate), (deck(baseline), deck(candidate))
    matching = _of_sites(options.matching or _matched(runs, decks, options), options.site)
    walk = Walk(runs=runs, decks=decks, pairs=matching.pairs, shift=shift_between(*runs), options=options)
    course = _Course(
        worst=Worst(matching.pairs), tally=Tally(shift=walk.shift), facts=(baseline.facts(), candidate.facts())
    )
    for judged in walk:
        course.take(judged)
    course.tally.floor_source = walk.noise.source
    course.tally.problems = [*walk.problems, *([_SILENT] if walk.noise.is_silent else [])]
    shapes = _shapes(matching.pairs, decks)
    if course.found is not None:
        course.found = _with_facts(course.found, matching.pairs, shapes, baseline, walk)
    rows = [walk.values.detailed(row) for row in course.worst.rows(shapes)]
    left_out = not_put_together(walk.left_out, matching.pairs, shapes, rows)
    course.tally.n_left_out = len(left_out)
    rows += left_out
    found = outcome(runs, matching=matching, rows=rows, tally=course.tally, blame=course.found, options=options)
    found = with_uncompared(found, runs, walk.shift, options.is_wanted)
    if course.unclear is not None and (course.found is None or course.found.is_gradual):
        found = replace(found, amplifications=amplifications(course.unclear))
    return _explained(found, walk, course)


def _with_facts(
    found: Blame, pairs: Sequence[Pair], shapes: Sequence[Shapes], baseline: RecordedRun, walk: Walk
) -> Blame:
    """The blame with shapes of its row, all that its values tell, and the line at which its module's code begins."""
    first = found.divergence
    row = first.row
    if row is not None:
        row = walk.values.detailed(replace(row, shapes=shapes[list(pairs).index(row.pair)]))
    source = source_of(baseline.facts(), first.site) if first.phase in _RUN_BY_MODULES else None
    return replace(found, divergence=replace(first, row=row, source=source))


def _explained(found: Comparison, walk: Walk, course: _Course) -> Comparison:
    """The comparison with the best fit for its first difference; of runs that are the same, with what is set apart."""
    if found.status == "same":
        return replace(found, notes=(*found.notes, *settings_apart(found.matching.pairs, course.facts)))
    if found.first is None or course.scene is None:
        return found
    behind = or_an_unseen_update(found, *walk.runs, course.scene, is_start=course.scene_before is None)
    if behind is not found:
        return behind

    def series(pair: Pair) -> tuple[PairedRow, ...]:
        again = replace(walk, pairs=[pair], problems=[])
        return tuple(row for judged in again for row in paired_rows(judged))

    def tensors(row: PairedRow) -> tuple[Array, Array] | None:
        return walk.values.arrays(row.pair, row.comparison.step, row.comparison.microbatch)

    case = case_of(
        walk.runs, walk.decks, found, found.first, course.scene, course.scene_before, series=series, tensors=tensors
    )
    return with_fit(found, accepted(case, walk.options.plugins))


def _matched(runs: tuple[RecordedRun, RecordedRun], decks: tuple[Deck, Deck], options: Options) -> Matching:
    mine, theirs = decks
    found = match(
        mine.cards, theirs.cards, options.map, baseline_facts=runs[0].facts(), candidate_facts=runs[1].facts(),
        plugins=options.plugins,
    )  # fmt: skip
    return without_slid_calls(found, runs, (mine.cards, theirs.cards))


def _of_sites(matching: Matching, pattern: str) -> Matching:
    if not pattern:
        return matching
    pairs = [p for p in matching.pairs if any(fnmatch.fnmatchcase(spot.site, pattern) for spot in p.baseline)]
    return replace(matching, pairs=tuple(pairs))


def _shapes(pairs: Sequence[Pair], decks: tuple[Deck, Deck]) -> list[Shapes]:
    mine, other = (deck.by_spot for deck in decks)
    return [(mine[pair.baseline[0]].shape, other[pair.candidate[0]].shape) for pair in pairs]


def source_of(facts: Facts | None, site: str) -> Source | None:
    """Where the forward of a module begins, or of the module that a parameter belongs to; None when not recorded."""
    if facts is None:
        return None
    where = {module.path: module.where for module in facts.modules}
    file, _, line = (where.get(site) or where.get(site.rpartition(".")[0], "")).rpartition(":")
    return Source(file=file, line=int(line), function="forward") if file and line.isdigit() else None
