"""`hypocenter report` and `hypocenter replay`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from recordings import record, run


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("runs") / "r")


def test_page_is_written_and_told_about(recording: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.html"

    said = run("report", recording, "-o", target)

    assert said.code == 0
    assert said.out == ""
    assert target.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert said.err.splitlines()[0].startswith(f"wrote {target} (")
    assert said.err.splitlines()[-1].endswith(f"hypocenter show {recording}")


def test_report_is_overwritten_only_by_force(recording: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.md"
    target.write_text("mine", encoding="utf-8")

    refused = run("report", recording, "-o", target)
    kept = target.read_text(encoding="utf-8")
    forced = run("report", recording, "-o", target, "--force")

    assert refused.code == 2
    assert refused.err.startswith("error[already-exists]: the report exists already\n")
    assert kept == "mine"
    assert forced.code == 0
    assert target.read_text(encoding="utf-8").startswith("# Hypocenter: r")


def test_dash_is_stdout_and_the_name_chooses_the_format(recording: Path) -> None:
    assert run("report", recording, "-o", "-", "--format", "sarif").out.startswith("{")
    assert run("report", recording, "--json").out.startswith("{")


def test_directory_that_is_not_there_is_an_error_in_words(recording: Path, tmp_path: Path) -> None:
    said = run("report", recording, "-o", tmp_path / "no" / "such" / "r.html")

    assert said.code == 2
    assert "the report cannot be written" in said.err


def test_replay_runs_in_a_fresh_process_and_hands_its_code_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def fake(words: list[str], check: bool) -> subprocess.CompletedProcess[bytes]:
        asked.append(words)
        return subprocess.CompletedProcess(words, 7)

    monkeypatch.setattr("hypocenter.cli.commands.replay.subprocess.run", fake)

    said = run("replay", tmp_path)

    assert said.code == 7
    assert asked == [[sys.executable, "-m", "hypocenter.replay", str(tmp_path)]]


def test_replay_of_no_bundle_is_4(tmp_path: Path) -> None:
    said = run("replay", tmp_path / "nothing")

    assert said.code == 4
    assert said.err.startswith("error[bad-bundle]: there is no bundle\n")


def test_of_a_run_the_bundle_to_name_is_said(tmp_path: Path) -> None:
    bundle = tmp_path / "rank-00000" / "bundles" / "step-000003-nonfinite-loss"
    bundle.mkdir(parents=True)
    (bundle / "op.json").write_text("{}", encoding="utf-8")

    said = run("replay", tmp_path, "--json")

    assert said.code == 4
    assert json.loads(said.out)["fix"] == f"hypocenter replay {bundle}"


def test_what_the_process_refuses_is_refused_in_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = tmp_path / "hidden" / "torch.py"
    hidden.parent.mkdir()
    hidden.write_text("raise ImportError('no torch here')", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(hidden.parent), os.environ.get("PYTHONPATH", "")]))

    said = run("replay", tmp_path, "--json")

    assert said.code == 2
    assert json.loads(said.out)["slug"] == "missing-framework"
    assert json.loads(said.out)["why"] == "no torch here"


@pytest.mark.parametrize("ending", [".pdf", ".docx", ".png"])
def test_an_ending_that_no_format_has_is_refused(tmp_path: Path, ending: str) -> None:
    target = tmp_path / f"report{ending}"

    said = run("report", record(tmp_path / "run"), "-o", target)

    assert said.code == 2
    assert said.err.startswith(f"error[bad-option]: no report is written as {ending}\n")
    assert str(target.with_suffix(".html")) in said.err
    assert not target.exists()
