"""From the judged rows to the answer: status, sentence, and notes on what was not or could not be compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hypocenter.compare.blame import Blame
from hypocenter.compare.comparison import (
    Comparison,
    Divergence,
    Fit,
    Floor,
    FloorSource,
    Matching,
    Pair,
    RowComparison,
    Verdict,
    is_given_to_loss,
)
from hypocenter.compare.distances.columns import DEPTHS, NONE
from hypocenter.compare.fit_evidence import say
from hypocenter.compare.judged_step import JudgedStep
from hypocenter.compare.judged_steps import Options
from hypocenter.compare.sentences import sentence, whys, with_rates
from hypocenter.compare.updates.compare import compare_updates
from hypocenter.compare.updates.comparison import UpdateDifference
from hypocenter.compare.verdict import CANNOT_TELL, DIFFERS, EQUAL, apart_from, by_chance
from hypocenter.detect.whole import end_doubts
from hypocenter.diagnose.deaths import jobs_of
from hypocenter.diagnose.records import Records
from hypocenter.record.facts_file import Facts, ModuleFacts
from hypocenter.record.reader import RecordedRun

_TIE = 0.05  # of the difference: two fits that explain it as well as each other
_FEW = 0.5  # of the smaller run's spots: with fewer pairs nothing is called the same
Shapes = tuple[tuple[int, ...], tuple[int, ...]]
_MOST_NAMED = 3  # of the modules; the others are counted
_SIDES = ("baseline", "candidate")
_AFTER_AN_UPDATE = ("forward", "loss", "backward", "grad")


@dataclass(slots=True)
class Counts:
    """Counts over all steps."""

    n_steps: int = 0
    n_rows: int = 0
    n_equal: int = 0
    n_differ: int = 0
    n_doubtful: int = 0  # between what is noise and what certainly differs
    n_noisy: int = 0  # not equal to the bit
    beyond: set[int] = field(default_factory=set[int])  # pairs with a row that is beyond its noise, surely or perhaps
    n_samples: int = 0  # of most floors
    is_far: bool = False  # one of them by more than chance may do
    n_incomparable: int = 0  # nothing that both sides hold
    n_negligible: int = 0  # of parameters whose gradients are rounding
    n_left_out: int = 0  # pairs that ranks hold in ways that cannot be put together
    deepest: int = NONE
    shift: int = 0
    floor_source: FloorSource = "none"
    problems: list[str] = field(default_factory=list[str])

    def take(self, judged: JudgedStep) -> None:
        """Count the rows of a step."""
        self.n_steps += 1
        self.n_rows += len(judged)
        counts = np.bincount(judged.verdicts, minlength=4)
        n_incomparable = int((judged.distances.depth == NONE).sum())
        self.n_equal += int(counts[EQUAL])
        self.n_differ += int(counts[DIFFERS])
        self.n_incomparable += n_incomparable
        n_negligible = int(judged.negligible.sum()) if judged.negligible is not None else 0
        self.n_negligible += n_negligible
        self.n_doubtful += int(counts[CANNOT_TELL]) - n_incomparable - n_negligible
        self.n_noisy = judged.n
        self.beyond |= set(judged.aligned.pair[judged.beyond].tolist())
        n_samples = judged.floors.n_samples
        most = apart_from(judged.n, judged.budget, n_samples) / judged.budget
        self.n_samples = max(self.n_samples, int(np.median(n_samples))) if len(judged) else self.n_samples
        self.is_far |= bool((judged.beyond & (judged.excess > most)).any())
        self.deepest = max(self.deepest, int(judged.distances.depth.max(initial=NONE)))


def outcome(
    runs: tuple[RecordedRun, RecordedRun], *, matching: Matching, rows: Sequence[RowComparison], counts: Counts,
    blame: Blame | None, options: Options,
) -> Comparison:  # fmt: skip
    """Put together the answer of the comparison."""
    status = _status(matching, counts, blame, options.budget)
    is_clear = blame is not None and (status == "diverged" or blame.is_random)
    found = Comparison(
        baseline=str(runs[0].directory), candidate=str(runs[1].directory), status=status,
        first=blame.divergence if blame is not None and is_clear else None, rows=tuple(rows), matching=matching,
        floor_source=counts.floor_source, budget=options.budget, depth=DEPTHS[counts.deepest],
        n_steps=counts.n_steps, n_rows=counts.n_rows, n_noisy=counts.n_noisy, n_samples=counts.n_samples,
        n_differ=counts.n_differ, notes=_notes(counts, matching),
        cause=_plain_cause(blame) if blame is not None and is_clear else None,
    )  # fmt: skip
    return replace(found, sentence=sentence(found, blame), why=whys(found, blame, counts.n_doubtful))


def with_fit(found: Comparison, fits: Sequence[Fit]) -> Comparison:
    """Return the answer with the best of the fits that explain its first difference."""
    if not fits:
        return found
    best = fits[0]
    if best.confidence == "possible" and found.cause not in (None, "unknown", best.cause):
        return found  # the place says more
    share = "" if best.explained == 1.0 else f" (explains {best.explained:.0%} of the difference)"
    why = (best.text + share, *found.why)
    rivals = [one for one in fits[1:] if one.confidence == best.confidence and one.explained > best.explained - _TIE]
    if rivals:
        best = replace(best, confidence="possible" if best.confidence == "likely" else "likely")
        why = (why[0], *(f"or else, just as well: {one.text}" for one in rivals), *why[1:])
    cause = best.cause if found.status == "diverged" or found.cause is not None else None
    answer = replace(found, fit=best, cause=cause, confidence=best.confidence, why=why)
    if best.name != "learning-rate" or found.first is None:
        return answer
    rates = best.values["baseline"], best.values["candidate"]
    return replace(answer, sentence=with_rates(found.sentence, found.first, rates))


def _plain_cause(blame: Blame) -> str:
    """Return the cause that the place of the difference alone tells."""
    row = blame.divergence.row
    if blame.is_random:
        return "rng-desync"
    if row is not None and is_given_to_loss(row.pair.baseline[0]):
        return "data-mismatch"  # labels
    return {"data": "data-mismatch", "param": "init-mismatch"}.get(blame.divergence.phase, "unknown")


def _status(matching: Matching, counts: Counts, blame: Blame | None, budget: float) -> Verdict:
    if not counts.n_rows or counts.n_incomparable * 2 > counts.n_rows:
        return "cannot-tell"
    if blame is not None and blame.is_random:
        return "cannot-tell"
    if blame is not None and not (blame.is_gradual and (blame.is_doubtful or counts.floor_source == "assumed")):
        return "diverged"
    if counts.beyond and not _is_chance(counts, budget):
        return "cannot-tell"
    n_smaller = len(matching.pairs) + min(len(matching.unmatched_baseline), len(matching.unmatched_candidate))
    return "same" if len(matching.pairs) - counts.n_left_out >= _FEW * n_smaller else "cannot-tell"


def _is_chance(counts: Counts, budget: float) -> bool:
    """Return whether what is beyond noise is as little, and as few rows, as by chance; False for assumed noise."""
    is_few = len(counts.beyond) <= by_chance(counts.n_noisy, budget)
    return counts.floor_source != "assumed" and is_few and not counts.is_far


def _notes(counts: Counts, matching: Matching) -> tuple[str, ...]:
    notes = list(dict.fromkeys((*matching.notes, *counts.problems)))
    if counts.shift:
        notes.append(f"step s of the baseline is compared with step s{counts.shift:+d} of the candidate")
    if counts.n_left_out:
        notes.append(
            f"{counts.n_left_out:,} values are not compared: how the ranks hold them together was not recorded"
        )
    if counts.n_incomparable:
        notes.append(f"{counts.n_incomparable:,} of {counts.n_rows:,} rows hold nothing that can be compared")
    if counts.n_negligible:
        notes.append(
            f"{counts.n_negligible:,} rows are of parameters whose gradient is nothing but rounding (such as the bias "
            "of attention keys): they are not judged"
        )
    return tuple(notes)


def not_put_together(
    left_out: Iterable[int], pairs: Sequence[Pair], shapes: Sequence[Shapes], compared: Sequence[RowComparison]
) -> list[RowComparison]:
    """Return a row for each pair that was left out, which says that nobody can tell.

    Args:
        left_out: numbers of pairs.
        pairs, shapes: of the matching.
        compared: rows of those that were.
    """
    known = {row.pair for row in compared}
    return [
        RowComparison(
            pair=pairs[number], step=0, microbatch=0, order=0, distance=None, floor=Floor(relative=0.0),
            verdict="cannot-tell", shapes=shapes[number],
        )
        for number in sorted(left_out)
        if pairs[number] not in known
    ]  # fmt: skip


def settings_apart(pairs: Iterable[Pair], facts: tuple[Facts | None, Facts | None]) -> tuple[str, ...]:
    """Note when modules of the same name differ in class, in a function or in an attribute; () when none does.

    Modules that go by other names are of another program: their classes and attributes differ as a matter of course.
    """
    mine, other = ({one.path: one for one in side.modules} if side is not None else {} for side in facts)
    sites = dict.fromkeys(pair.baseline[0].site for pair in pairs if pair.by == "exact" and pair.baseline[0].site)
    lines = [line for site in sites if site in mine and site in other for line in _apart(mine[site], other[site])]
    if not lines:
        return ()
    more = f"; and {len(lines) - _MOST_NAMED} more" if len(lines) > _MOST_NAMED else ""
    return (f"within noise here, but set in another way: {'; '.join(lines[:_MOST_NAMED])}{more}",)


def _apart(a: ModuleFacts, b: ModuleFacts) -> Iterator[str]:
    if a.kind != b.kind:
        yield f"{a.path} is {a.kind} in the baseline and {b.kind} in the candidate"
        return
    for mine, other in ((a.functions, b.functions), (a.attributes, b.attributes)):
        for name in sorted(mine.keys() & other.keys()):
            if mine[name] != other[name]:
                yield (
                    f"{name} of {a.path} is {say(mine[name])} in the baseline and {say(other[name])} in the candidate"
                )


def with_uncompared(
    found: Comparison, runs: tuple[RecordedRun, RecordedRun], shift: int, is_wanted: Callable[[int], bool] | None
) -> Comparison:
    """Return the answer with notes about steps that were not compared.

    Two runs are the same only as far as both are whole: where one was killed, or its recording stopped, before the
    other's last step, nobody can tell.

    Args:
        found: the answer on the steps that both have.
        runs: baseline and candidate.
        shift: what to add to a step of the baseline for the candidate's.
        is_wanted: of a step of the baseline; None: all are.
    """
    theirs = {step - shift for step in _steps(runs[1])}
    steps = [{s for s in side if is_wanted is None or is_wanted(s)} for side in (_steps(runs[0]), theirs)]
    lines = [line for i in (0, 1) if (line := _only(i, steps[i] - steps[1 - i], len(steps[i])))]
    short = [i for i in (0, 1) if steps[1 - i] - steps[i]]
    broken = [f"{_SIDES[i]}: {doubt}" for i in short for doubt in _of_the_end(runs[i])]
    found = replace(found, notes=(*found.notes, *lines))
    if found.status != "same" or not broken:
        return found
    rest = found.sentence.removeprefix("same: ")
    return replace(
        found,
        status="cannot-tell",
        sentence=f"cannot tell: {'; '.join(lines)}; what was compared is the same ({rest})",
        why=(*broken, *found.why),
    )


def _steps(run: RecordedRun) -> set[int]:
    """Return the steps that every rank has completed."""
    found: dict[int, set[int]] = {}
    for rank, record in run.step_records():
        found.setdefault(rank, set()).add(record.step)
    return set[int].intersection(*found.values()) if found else set()


def _only(side: int, steps: Iterable[int], n_steps: int) -> str:
    ordered = sorted(steps)
    if not ordered:
        return ""
    runs = ", ".join(_spans(ordered))
    word = "steps" if len(ordered) > 1 else "step"
    return f"only the {_SIDES[side]}, of {n_steps:,} steps, has {word} {runs}: not compared"


def _spans(steps: list[int]) -> Iterator[str]:
    """Yield the spans of rising numbers as text: `3`, `6 to 11`."""
    ends = [i for i in range(len(steps)) if i + 1 == len(steps) or steps[i + 1] != steps[i] + 1]
    for start, end in zip([0, *(i + 1 for i in ends)], ends, strict=False):
        yield str(steps[start]) if start == end else f"{steps[start]} to {steps[end]}"


def _of_the_end(run: RecordedRun) -> tuple[str, ...]:
    return end_doubts(jobs_of(run, Records.of(run))[-1])


def or_an_unseen_update(
    found: Comparison, baseline: RecordedRun, candidate: RecordedRun, step: JudgedStep, *, is_start: bool
) -> Comparison:
    """Return the comparison, with the optimizer's step in place of what only followed from it.

    Level tensors keeps what optimizers do at each scheduled step, parameters as rows only now and then. Where rows
    of parameters are there they have been compared already, and nothing is looked at.

    Args:
        step: the step of the first difference.
        is_start: no step was compared before it.
    """
    first = found.first
    if found.status != "diverged" or first is None or first.phase not in _AFTER_AN_UPDATE or is_start:
        return found
    if (step.phase == "param").any():
        return found
    culprit = compare_updates(baseline, candidate, found.matching).first
    if culprit is None or culprit.step >= first.step:
        return found
    return _of_update(found, first, culprit)


def _of_update(found: Comparison, first: Divergence, culprit: UpdateDifference) -> Comparison:
    reason = culprit.reasons[0]
    followed = f"what followed first: {first.phase} of step {first.step}, {first.site} {first.port}".rstrip()
    tail = found.sentence.partition(";")[2]
    return replace(
        found,
        first=Divergence(
            step=culprit.step, microbatch=0, phase="optimizer", site=culprit.baseline, port="value",
            candidate_site=culprit.candidate, error=reason.effect, floor=0.0,
        ),
        sentence=f"diverged at step {culprit.step}, optimizer: {culprit.baseline} is updated by another rule"
        + (f";{tail}" if tail else ""),
        cause=reason.cause, confidence=reason.confidence, fit=None,
        why=(*(each.text for each in culprit.reasons), followed),
    )  # fmt: skip
