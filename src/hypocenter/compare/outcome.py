"""From what was found to the answer: status, sentence, why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hypocenter.compare.blame import Blame
from hypocenter.compare.chance import apart_from, by_chance
from hypocenter.compare.comparison import Comparison, Fit, FloorSource, Matching, RowComparison, Verdict
from hypocenter.compare.distances.columns import NONE, depth_word
from hypocenter.compare.execution import is_given_to_loss
from hypocenter.compare.judged import Judged
from hypocenter.compare.options import Options
from hypocenter.compare.verdict import CANNOT_TELL, DIFFERS, EQUAL
from hypocenter.compare.words import sentence, whys
from hypocenter.record.reader import RecordedRun

_TIE = 0.05  # of the difference: two fits that explain it as well as each other
_FEW = 0.5  # of the smaller run's spots: with fewer pairs nothing is called the same


@dataclass(slots=True)
class Tally:
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

    def take(self, judged: Judged) -> None:
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
    runs: tuple[RecordedRun, RecordedRun], *, matching: Matching, rows: Sequence[RowComparison], tally: Tally,
    blame: Blame | None, options: Options,
) -> Comparison:  # fmt: skip
    """The answer."""
    status = _status(matching, tally, blame, options.budget)
    is_clear = blame is not None and (status == "diverged" or blame.is_random)
    found = Comparison(
        baseline=str(runs[0].directory), candidate=str(runs[1].directory), status=status,
        first=blame.divergence if blame is not None and is_clear else None, rows=tuple(rows), matching=matching,
        floor_source=tally.floor_source, budget=options.budget, depth=depth_word(tally.deepest),
        n_steps=tally.n_steps, n_rows=tally.n_rows, n_noisy=tally.n_noisy, n_samples=tally.n_samples,
        n_differ=tally.n_differ, notes=_notes(tally, matching),
        cause=_plain_cause(blame) if blame is not None and is_clear else None,
    )  # fmt: skip
    return replace(found, sentence=sentence(found, blame), why=whys(found, blame, tally.n_doubtful))


def with_fit(found: Comparison, fits: Sequence[Fit]) -> Comparison:
    """The answer with the best of the fits that explain its first difference."""
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
    return replace(found, fit=best, cause=cause, confidence=best.confidence, why=why)


def _plain_cause(blame: Blame) -> str:
    """What the place alone says."""
    row = blame.divergence.row
    if blame.is_random:
        return "rng-desync"
    if row is not None and is_given_to_loss(row.pair.baseline[0]):
        return "data-mismatch"  # labels
    return {"data": "data-mismatch", "param": "init-mismatch"}.get(blame.divergence.phase, "unknown")


def _status(matching: Matching, tally: Tally, blame: Blame | None, budget: float) -> Verdict:
    if not tally.n_rows or tally.n_incomparable * 2 > tally.n_rows:
        return "cannot-tell"
    if blame is not None and blame.is_random:
        return "cannot-tell"
    if blame is not None and not (blame.is_gradual and (blame.is_doubtful or tally.floor_source == "assumed")):
        return "diverged"
    if tally.beyond and not _is_chance(tally, budget):
        return "cannot-tell"
    n_smaller = len(matching.pairs) + min(len(matching.unmatched_baseline), len(matching.unmatched_candidate))
    return "same" if len(matching.pairs) - tally.n_left_out >= _FEW * n_smaller else "cannot-tell"


def _is_chance(tally: Tally, budget: float) -> bool:
    """Whether what is beyond its noise is as little, and as few, as chance gives. An assumed noise tells nothing."""
    is_few = len(tally.beyond) <= by_chance(tally.n_noisy, budget)
    return tally.floor_source != "assumed" and is_few and not tally.is_far


def _notes(tally: Tally, matching: Matching) -> tuple[str, ...]:
    notes = list(dict.fromkeys((*matching.notes, *tally.problems)))
    if tally.shift:
        notes.append(f"step s of the baseline is compared with step s{tally.shift:+d} of the candidate")
    if tally.n_left_out:
        notes.append(f"{tally.n_left_out:,} values are not compared: how the ranks hold them together was not recorded")
    if tally.n_incomparable:
        notes.append(f"{tally.n_incomparable:,} of {tally.n_rows:,} rows hold nothing that can be compared")
    if tally.n_negligible:
        notes.append(
            f"{tally.n_negligible:,} rows are of parameters whose gradient is nothing but rounding (such as the bias "
            "of attention keys): they are not judged"
        )
    return tuple(notes)
