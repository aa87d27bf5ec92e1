"""`hypocenter ship`: a recording, or what is missing of it, brought elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from hypocenter.cli import main
from hypocenter.record.reader import open_run
from tests.record.retained import recorded


def test_what_is_there_is_the_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = recorded(tmp_path / "run", 300, None)

    assert main(["ship", str(run), str(tmp_path / "there")]) == 0

    out, err = capsys.readouterr()
    assert "2 files of" in out
    assert "hypocenter check" in err
    assert len(open_run(tmp_path / "there").step_records()) == 300


def test_a_place_that_cannot_be_reached_is_one_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = recorded(tmp_path / "run", 10, None)
    (tmp_path / "file").write_text("in the way")

    assert main(["ship", str(run), str(tmp_path / "file")]) != 0
    assert "could not be shipped" in capsys.readouterr().err
    assert main(["ship", str(run), "nosuch://bucket/run"]) != 0
    assert "cannot be reached" in capsys.readouterr().err
