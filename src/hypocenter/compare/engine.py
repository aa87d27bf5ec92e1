"""Two recordings in, one Comparison out. Both are streamed: a step of each is in memory at a time."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypocenter.compare.blame import Blame, amplifications, blame
from hypocenter.compare.cards import RunCards, cards_of
from hypocenter.compare.case import PairedRow, case_of, paired_rows
from hypocenter.compare.comparison import Comparison, Matching, Pair
from hypocenter.compare.fitting import accepted
from hypocenter.compare.judged_step import JudgedStep, Worst
from hypocenter.compare.judged_steps import JudgedSteps, Options
from hypocenter.compare.matching import match, without_slid_calls
from hypocenter.compare.outcome import (
    Counts,
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
class _Progress:
    """What was found in the steps so far."""

    worst: Worst
    counts: Counts
    facts: tuple[Facts | None, Facts | None]
    before: JudgedStep | None = None
    found: Blame | None = None
    blamed_step: JudgedStep | None = None  # the step of the blame
    step_before: JudgedStep | None = None
    unclear: JudgedStep | None = None  # the last step with differences, else the first with doubts
    n_blamed: int = 0

    def take(self, judged: JudgedStep) -> None:
        """Take the next step into account; once there is a culprit that is no gradual one, it stays."""
        self.counts.take(judged)
        if (self.unclear is None and (judged.verdicts == CANNOT_TELL).any()) or judged.differs.any():
            self.unclear = judged
        self.worst.take(judged)
        if self.found is not None and not self.found.is_gradual:
            return
        if judged.differs.any() and self.n_blamed < _MOST_STEPS_BLAMED:
            self.n_blamed += 1
            found = blame(judged, self.before, is_start=self.before is None, facts=self.facts)
            if found is not None and (self.found is None or not found.is_gradual):
                self.found, self.blamed_step, self.step_before = found, judged, self.before
        self.before = judged


def compare_runs(baseline: RecordedRun, candidate: RecordedRun, *, options: Options | None = None) -> Comparison:
    """Compare two recordings and say where they first differ by more than noise, or that they do not.

    Args:
        baseline: what is right.
        candidate: what is asked about.
        options: noise runs, budget, map, selection.

    Raises:
        HypocenterError: a recording cannot be read, or the map does not fit.
    """
    options = options or Options()
    runs, run_cards = (baseline, candidate), (cards_of(baseline), cards_of(candidate))
    matching = _of_sites(options.matching or _matched(runs, run_cards, options), options.site)
    shift = shift_between(*runs) if options.shift is None else options.shift
    steps = JudgedSteps(runs=runs, run_cards=run_cards, pairs=matching.pairs, shift=shift, options=options)
    progress = _Progress(
        worst=Worst(matching.pairs), counts=Counts(shift=steps.shift), facts=(baseline.facts(), candidate.facts())
    )
    for judged in steps:
        progress.take(judged)
    progress.counts.floor_source = steps.noise.source
    progress.counts.problems = [*steps.problems, *([_SILENT] if steps.noise.is_silent else [])]
    shapes = _shapes(matching.pairs, run_cards)
    if progress.found is not None:
        progress.found = _with_facts(progress.found, matching.pairs, shapes, baseline, steps)
    rows = [steps.values.detailed(row) for row in progress.worst.rows(shapes)]
    left_out = not_put_together(steps.left_out, matching.pairs, shapes, rows)
    progress.counts.n_left_out = len(left_out)
    rows += left_out
    found = outcome(runs, matching=matching, rows=rows, counts=progress.counts, blame=progress.found, options=options)
    found = with_uncompared(found, runs, steps.shift, options.is_wanted)
    if progress.unclear is not None and (progress.found is None or progress.found.is_gradual):
        found = replace(found, amplifications=amplifications(progress.unclear))
    return _explained(found, steps, progress)


def _with_facts(
    found: Blame, pairs: Sequence[Pair], shapes: Sequence[Shapes], baseline: RecordedRun, steps: JudgedSteps
) -> Blame:
    """Return the blame with its row's shapes and details and with the line at which its module's code begins."""
    first = found.divergence
    row = first.row
    if row is not None:
        row = steps.values.detailed(replace(row, shapes=shapes[list(pairs).index(row.pair)]))
    source = source_of(baseline.facts(), first.site) if first.phase in _RUN_BY_MODULES else None
    return replace(found, divergence=replace(first, row=row, source=source))


def _explained(found: Comparison, steps: JudgedSteps, progress: _Progress) -> Comparison:
    """Add the best fit for the first difference; to runs that are the same, add the settings that differ."""
    if found.status == "same":
        return replace(found, notes=(*found.notes, *settings_apart(found.matching.pairs, progress.facts)))
    if found.first is None or progress.blamed_step is None:
        return found
    behind = or_an_unseen_update(found, *steps.runs, progress.blamed_step, is_start=progress.step_before is None)
    if behind is not found:
        return behind

    def series(pair: Pair) -> tuple[PairedRow, ...]:
        again = replace(steps, pairs=[pair], problems=[])
        return tuple(row for judged in again for row in paired_rows(judged))

    def tensors(row: PairedRow) -> tuple[Array, Array] | None:
        return steps.values.arrays(row.pair, row.comparison.step, row.comparison.microbatch)

    case = case_of(
        steps.runs,
        steps.run_cards,
        found,
        found.first,
        progress.blamed_step,
        progress.step_before,
        series=series,
        tensors=tensors,
    )
    return with_fit(found, accepted(case, steps.options.plugins))


def _matched(runs: tuple[RecordedRun, RecordedRun], run_cards: tuple[RunCards, RunCards], options: Options) -> Matching:
    mine, theirs = run_cards
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


def _shapes(pairs: Sequence[Pair], run_cards: tuple[RunCards, RunCards]) -> list[Shapes]:
    mine, other = (side.by_spot for side in run_cards)
    return [(mine[pair.baseline[0]].shape, other[pair.candidate[0]].shape) for pair in pairs]


def source_of(facts: Facts | None, site: str) -> Source | None:
    """Return where the forward of a module, or of a parameter's module, begins; None when not recorded."""
    if facts is None:
        return None
    where = {module.path: module.where for module in facts.modules}
    file, _, line = (where.get(site) or where.get(site.rpartition(".")[0], "")).rpartition(":")
    return Source(file=file, line=int(line), function="forward") if file and line.isdigit() else None
