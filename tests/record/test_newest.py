"""The newest recording of a folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hypocenter.errors import NoRecordingError
from hypocenter.record.whole_run import newest_run


def recorded(folder: Path, name: str, started: str) -> Path:
    (folder / name / "rank-00000").mkdir(parents=True)
    run = {"format": 1, "name": name, "started": started}
    (folder / name / "run.json").write_text(json.dumps(run), encoding="utf-8")
    return folder / name


def test_it_is_the_one_whose_program_was_started_last(tmp_path: Path) -> None:
    newest = recorded(tmp_path, "a", "2026-03-01T00:00:02.000+00:00")
    recorded(tmp_path, "b", "2026-03-01T00:00:01.000+00:00")
    (tmp_path / "no-recording").mkdir()

    assert newest_run(tmp_path) == newest


def test_one_that_does_not_say_comes_last(tmp_path: Path) -> None:
    newest = recorded(tmp_path, "a", "2026-03-01T00:00:02.000+00:00")
    (recorded(tmp_path, "b", "") / "run.json").unlink()

    assert newest_run(tmp_path) == newest


@pytest.mark.parametrize("folder", [".", "missing"])
def test_without_any_it_is_an_error_that_says_what_to_type(tmp_path: Path, folder: str) -> None:
    with pytest.raises(NoRecordingError, match="no run is named") as caught:
        newest_run(tmp_path / folder)

    assert caught.value.fix == "name one: hypocenter check RUN"
