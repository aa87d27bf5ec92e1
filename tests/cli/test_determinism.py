"""`hypocenter determinism` as a person uses it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commanded import PROGRAMS, recorded
from recordings import run


def test_recordings_that_agree_exit_0(tmp_path: Path) -> None:
    said = run("determinism", "--recorded", recorded(tmp_path / "a", 1), "--recorded", recorded(tmp_path / "b", 1))

    assert said.code == 0, said.err
    assert said.out.startswith("deterministic: in 1 step, 2 runs agree bit for bit")


def test_recordings_that_differ_exit_1_and_name_operator_line_and_cause(tmp_path: Path) -> None:
    said = run("determinism", "--recorded", recorded(tmp_path / "a", 1), "--recorded", recorded(tmp_path / "b", 2))

    assert said.code == 1, said.err
    assert said.out.startswith("differs: index_add gives other bits for the same inputs, step 0, forward")
    assert "--> train.py:0 at step 0, forward" in said.out
    assert "= cause: unordered-accumulation (proven)" in said.out


def test_recordings_without_a_step_exit_5(tmp_path: Path) -> None:
    runs = [recorded(tmp_path / name, 1, trains=False) for name in "ab"]

    said = run("determinism", "--recorded", runs[0], "--recorded", runs[1], "--json")

    assert said.code == 5, said.err
    found = json.loads(said.out)
    assert (found["schema"], found["status"]) == ("hypocenter.determinism/1", "cannot-tell")
    assert found["why"]


@pytest.mark.parametrize("words", [[], ["--recorded", "RUN"], ["--recorded", "RUN", "--recorded", "RUN", "train.py"]])
def test_nothing_to_compare_is_a_usage_error(words: list[str], tmp_path: Path) -> None:
    there = recorded(tmp_path / "a", 1)

    said = run("determinism", *(there if word == "RUN" else word for word in words), "--json")

    assert said.code == 2
    assert "fix" in said.err or "hint" in said.err


@pytest.mark.night
def test_runs_a_program_twice_and_finds_its_cure(tmp_path: Path) -> None:
    """In real processes: what PYTHONHASHSEED decides is decided when one starts."""
    said = run("determinism", "--cure", "--json", "--out", tmp_path / "runs", PROGRAMS / "set_order.py")

    assert said.code == 1, said.err
    found = json.loads(said.out)
    assert (found["first"]["cause"], found["first"]["op"]) == ("other-path", "aten.normal_.default")
    assert found["cure"]["verified"]
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {
        "run-1", "run-2", "deterministic-1", "deterministic-2",
    }  # fmt: skip
    assert "run 2 of 2" in said.err


def test_a_program_that_fails_is_told_with_its_last_line(tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text("raise SystemExit('no such data')", encoding="utf-8")

    said = run("determinism", "--out", tmp_path / "runs", script)

    assert said.code == 5, said.err
    assert "run-1 ended with exit code 1: no such data" in said.out
