"""`hypocenter twin` as a person uses it."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path

import pytest
from recordings import run

from hypocenter.cli.commands import twin
from hypocenter.twins.runs import Runs

TESTS = Path(__file__).resolve().parents[1]
PROGRAMS = TESTS / "twins" / "programs"
sys.path[:0] = [str(TESTS / "align"), str(TESTS / "processes")]

from started import start  # noqa: E402


def test_list_names_every_change_with_its_values() -> None:
    said = run("twin", "--list")

    assert said.code == 0, said.err
    lines = [line.split()[0] for line in said.out.splitlines() if line]
    assert lines[:5] == ["nothing", "resume", "workers[=N]", "accumulation[=K]", "threads[=N]"]
    assert "hypocenter explain NAME" in said.out


@pytest.mark.parametrize(
    ("words", "slug"),
    [
        (["resum", "--", "train.py"], "unknown-name"),
        (["nothing=3", "--", "plain.py"], "bad-option"),
        (["nothing"], "bad-option"),
        (["resume", "--", "plain.py"], "bad-option"),
        (["threads=none", "--", "plain.py"], "bad-option"),
        (["attention=own", "--", "plain.py"], "bad-option"),
        (["resume", "--stop-at", "3", "--resume-args", "'", "--", "plain.py"], "bad-option"),
        (["nothing", "--", "nowhere.py"], "unknown-name"),
    ],
)
def test_what_cannot_be_done_is_one_error(words: list[str], slug: str, tmp_path: Path) -> None:
    words = [str(PROGRAMS / word) if word == "plain.py" else word for word in words]

    said = run("twin", words[0], "--out", tmp_path / "runs", "--json", *words[1:])

    assert said.code == 2, said.err
    assert json.loads(said.out)["slug"] == slug
    assert not any(path.name == "run.json" for path in tmp_path.rglob("*"))


@pytest.mark.night
def test_resumes_a_program_and_names_what_is_missing(tmp_path: Path) -> None:
    """In real processes, with words of the program that look like options of ours."""
    out = tmp_path / "runs"
    said = run(
        "twin", "resume", "--stop-at", 4, "--steps", 2, "--resume-args", "--resume optimizer", "--out", out, "--",
        PROGRAMS / "plain.py", "{folder}",
    )  # fmt: skip

    assert said.code == 1, said.err
    assert said.out.startswith("differs: resumed at step 4, the optimizer state is not there")
    assert "= cause: optimizer-state-not-restored (proven)" in said.out
    assert "  optimizer state  missing  0 of 12" in said.out
    assert {path.name for path in out.iterdir()} == {
        "stopped", "resumed", "uninterrupted", "interrupted.files", "uninterrupted.files",
    }  # fmt: skip
    assert "resumed: " in said.err


def test_a_program_that_fails_is_one_error_with_what_it_said(tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text("raise SystemExit('no such data')", encoding="utf-8")

    said = run("twin", "checkpointing", "--json", "--out", tmp_path / "runs", "--", script)

    assert said.code == 5, said.err
    answer = json.loads(said.out)
    assert (answer["slug"], answer["why"]) == ("program-failed", "no such data")


def test_nothing_is_determinism(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twin, "Runs", functools.partial(Runs, start=start))

    said = run(
        "twin", "nothing", "--steps", 1, "--json", "--out", tmp_path / "runs", "--", PROGRAMS / "odd.py", "plain"
    )

    assert said.code == 0, said.err
    answer = json.loads(said.out)
    assert (answer["schema"], answer["status"], answer["change"]) == ("hypocenter.twin/1", "same", "nothing")
    assert answer["repeats"]["status"] == "deterministic"
