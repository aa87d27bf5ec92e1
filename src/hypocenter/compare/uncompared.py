"""Steps that only one of two runs has, and whether they are missing there because that run did not end well."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from hypocenter.compare.comparison import Comparison
from hypocenter.detect.whole import end_doubts
from hypocenter.diagnose.job_end import jobs_of
from hypocenter.record.reader import RecordedRun

_SIDES = ("baseline", "candidate")


def with_uncompared(
    found: Comparison, runs: tuple[RecordedRun, RecordedRun], shift: int, is_wanted: Callable[[int], bool] | None
) -> Comparison:
    """The answer with a line about steps that were not compared.

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
    """Steps that every rank has completed."""
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
    """`3`, `6 to 11`, of rising numbers."""
    ends = [i for i in range(len(steps)) if i + 1 == len(steps) or steps[i + 1] != steps[i] + 1]
    for start, end in zip([0, *(i + 1 for i in ends)], ends, strict=False):
        yield str(steps[start]) if start == end else f"{steps[start]} to {steps[end]}"


def _of_the_end(run: RecordedRun) -> tuple[str, ...]:
    records = {(rank, record.step): record for rank, record in run.step_records()}
    return end_doubts(jobs_of(run, records)[-1])
