"""A process that imports two frameworks has two sessions and one recording: of the one that makes a step first."""

from __future__ import annotations

from pathlib import Path

from hypocenter.config import Config
from hypocenter.nouns import StepRecord
from hypocenter.record.reader import open_run
from hypocenter.session.guard import Warnings
from hypocenter.session.output import Output


def an_output(directory: Path, framework: str) -> tuple[Output, Warnings]:
    warn = Warnings()
    made = Output(
        Config(), directory, lambda: (0, 1), warn, owns_run=True, command=("train.py",), versions={framework: "1.0"}
    )
    return made, warn


def test_the_framework_that_makes_a_step_first_writes(tmp_path: Path) -> None:
    (first, quiet), (second, told) = (an_output(tmp_path / "run", name) for name in ("torch", "mindspore"))

    for step in range(2):
        first.write([], StepRecord(step=step, loss=1.0))
        second.write([], StepRecord(step=step, loss=2.0))
    second.close()
    first.close()

    assert [record.loss for _, record in open_run(tmp_path / "run").step_records()] == [1.0, 1.0]
    assert (quiet.lines, len(told.lines)) == ([], 1)
    assert "only what trains with torch is recorded" in told.lines[0]
    assert second.is_broken
    assert not first.is_broken


def test_a_session_after_another_writes_whatever_its_framework(tmp_path: Path) -> None:
    for framework in ("torch", "mindspore"):
        output, _ = an_output(tmp_path / framework, framework)
        output.write([], StepRecord(step=0))
        output.close()
    again, told = an_output(tmp_path / "torch", "mindspore")
    again.write([], StepRecord(step=1))
    again.close()

    assert told.lines == []


def test_one_that_never_makes_a_step_says_nothing(tmp_path: Path) -> None:
    output, told = an_output(tmp_path / "run", "mindspore")

    output.close()

    assert told.lines == []
    assert not (tmp_path / "run").exists()
