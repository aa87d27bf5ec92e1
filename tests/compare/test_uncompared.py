"""Steps that one of two runs lacks are said; of a run that did not end well nobody says that it is the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from hypocenter.compare.comparison import Comparison
from hypocenter.compare.engine import compare_runs
from hypocenter.compare.judged_steps import Options
from hypocenter.nouns import Reading, StepRecord, Summary
from hypocenter.record.reader import open_run
from hypocenter.record.run_file import EndStatus, finish_run, start_run
from hypocenter.record.writer import Writer


def recorded(path: Path, n_steps: int, status: EndStatus = "finished", code: int = 0, first: int = 0) -> Path:
    start_run(path, ["train.py"], {}, 1, {})
    writer = Writer(path, rank=0, warn=print)
    for step in range(first, first + n_steps):
        summary = Summary(n=4, n_hist=4, min=-1.0, max=1.0, absmax=1.0, sum=0.0, sumsq=1.0 + step)
        row = Reading(
            step=step, microbatch=0, phase="forward", site="m", port="out[0]", order=0, dtype="float32", shape=(4,),
            summary=summary,
        )  # fmt: skip
        writer.write([row], StepRecord(step=step, loss=1.0 / (step + 1)))
    writer.close()
    finish_run(path, status, code)
    return path


def compared(tmp_path: Path, candidate: Path, options: Options | None = None) -> Comparison:
    baseline = recorded(tmp_path / "baseline", 18)
    return compare_runs(open_run(baseline), open_run(candidate), options=options)


LINE = "only the baseline, of 18 steps, has steps 13 to 17: not compared"


@pytest.mark.parametrize(("status", "code"), [("killed", 137), ("failed", 1)])
def test_a_run_that_ended_badly_before_the_other_is_not_the_same(tmp_path: Path, status: EndStatus, code: int) -> None:
    found = compared(tmp_path, recorded(tmp_path / "candidate", 13, status, code))

    assert found.status == "cannot-tell"
    assert LINE in found.sentence
    assert LINE in found.notes
    assert found.why[0].startswith("candidate: the program ")


def test_a_run_that_was_cut_on_purpose_is_the_same_with_a_word(tmp_path: Path) -> None:
    found = compared(tmp_path, recorded(tmp_path / "candidate", 13))

    assert (found.status, LINE in found.notes) == ("same", True)


def test_a_recording_that_was_never_closed_is_not_the_same(tmp_path: Path) -> None:
    candidate = recorded(tmp_path / "candidate", 13)
    run = candidate / "run.json"
    run.write_text(run.read_text().replace('"finished"', '"running"'))

    found = compared(tmp_path, candidate)

    assert (found.status, found.why[0].startswith("candidate: the recording was not closed")) == ("cannot-tell", True)


def test_steps_that_nobody_asked_for_are_not_missed(tmp_path: Path) -> None:
    candidate = recorded(tmp_path / "candidate", 13, "killed", 137)

    found = compared(tmp_path, candidate, Options(is_wanted=lambda step: step < 13))

    assert (found.status, found.notes) == ("same", ())


def test_killed_runs_of_the_same_steps_are_the_same(tmp_path: Path) -> None:
    found = compared(tmp_path, recorded(tmp_path / "candidate", 18, "killed", 137))

    assert found.status == "same"


def test_several_stretches_are_listed(tmp_path: Path) -> None:
    candidate = recorded(tmp_path / "candidate", 13, "killed", 137, first=3)
    found = compared(tmp_path, candidate)

    assert "only the baseline, of 18 steps, has steps 0 to 2, 16 to 17: not compared" in found.notes
