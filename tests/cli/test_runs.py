"""`hypocenter runs`: which recordings there are, and what was found in each so far."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from recordings import record, run

from hypocenter.diagnose import run_list
from hypocenter.diagnose.run_list import Runs
from hypocenter.json_answer import published


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    record(tmp_path / "runs" / "first")
    record(tmp_path / "runs" / "group" / "second", fails=False)
    run("check", tmp_path / "runs" / "first")
    return tmp_path / "runs"


def test_newest_first_with_what_was_found(folder: Path) -> None:
    said = run("runs", folder)
    lines = said.out.splitlines()

    assert said.code == 0
    assert [line.split()[0] for line in lines] == [str(folder / "group" / "second"), str(folder / "first")]
    assert "not-checked" in lines[0]
    assert "cannot-tell  HC104 FeedForward made +inf" in lines[1]
    assert said.err == f"next: hypocenter check {folder / 'group' / 'second'}\n"


def test_json_follows_its_schema_and_says_what_cannot_be_read(folder: Path) -> None:
    newer = folder / "newer"
    newer.mkdir()
    (newer / "run.json").write_text('{"format": 999, "name": "newer"}', encoding="utf-8")
    (folder / "first" / "diagnosis.json").write_text("{", encoding="utf-8")

    answer = json.loads(run("runs", folder, "--json").out)
    by_name = {Path(each["path"]).name: each for each in answer["runs"]}

    jsonschema.validate(answer, published(Runs))
    assert (by_name["newer"]["program"], by_name["first"]["diagnosis"]) == ("unknown", "not-checked")
    assert by_name["newer"]["first"]


def test_a_folder_without_any_is_4(tmp_path: Path) -> None:
    assert run("runs", tmp_path).code == 4
    assert "there is no such folder" in run("runs", tmp_path / "none").err


def test_too_many_folders_are_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_list, "MOST_FOLDERS", 1)
    none = run("runs", folder)
    monkeypatch.setattr(run_list, "MOST_FOLDERS", 3)
    some = run("runs", folder)

    assert (none.code, some.code) == (4, 0)
    assert "none in the first 1 folders; there are more" in none.err
    assert "too many folders" in some.err
