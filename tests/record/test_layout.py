"""record/layout.py: a new run directory never harms what is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from hypocenter.errors import ConfigError, ExistsError
from hypocenter.nouns import StepRecord
from hypocenter.record.layout import is_recording, new_run_directory, rank_directory
from hypocenter.record.run_file import start_run
from hypocenter.record.writer import Writer


def record(directory: Path) -> None:
    start_run(directory, ["python", "train.py"], {}, 1, {})
    writer = Writer(directory, rank=0, warn=pytest.fail)
    writer.write([], StepRecord(step=0))
    writer.close()


def contents(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def test_without_a_name_each_call_gives_a_new_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    made = [new_run_directory(None, False, "train t5/../x") for _ in range(3)]

    assert len(set(made)) == 3
    assert all(path.is_dir() and path.parent == Path("runs") for path in made)
    assert made[0].name.endswith("-train-t5-..-x")


def test_a_given_directory_is_made_with_its_parents(tmp_path: Path) -> None:
    out = tmp_path / "a" / "b"

    assert new_run_directory(str(out), False) == out
    assert new_run_directory(str(out), False) == out  # still empty
    assert out.is_dir()


def test_a_recording_is_not_overwritten(tmp_path: Path) -> None:
    record(tmp_path)
    before = contents(tmp_path)

    with pytest.raises(ExistsError) as caught:
        new_run_directory(str(tmp_path), False)

    assert str(caught.value) == (
        "error[already-exists]: a recording exists there already\n"
        f"  --> {tmp_path}\n"
        "   = why: recordings are never overwritten silently\n"
        "   = fix: choose another with --out, or add --force to replace it"
    )
    assert contents(tmp_path) == before


def test_force_removes_the_recording_and_nothing_else(tmp_path: Path) -> None:
    record(tmp_path)
    (tmp_path / "notes.md").write_text("mine")
    (tmp_path / "rank-and-file").mkdir()

    new_run_directory(str(tmp_path), True)

    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes.md", "rank-and-file"]


def test_force_does_not_follow_links(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "thesis.tex").write_text("mine")
    run = tmp_path / "run"
    record(run)
    rank_directory(run, 1).symlink_to(elsewhere)

    new_run_directory(str(run), True)

    assert list(run.iterdir()) == []
    assert (elsewhere / "thesis.tex").read_text() == "mine"


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("name", ["model.py", "run.json", "diagnosis.json", "rank-12"])
def test_a_directory_that_is_no_recording_is_never_touched(tmp_path: Path, name: str, force: bool) -> None:
    (tmp_path / name).write_text('{"athlete": "me"}')
    before = contents(tmp_path)

    with pytest.raises(ExistsError):
        new_run_directory(str(tmp_path), force)

    assert contents(tmp_path) == before


@pytest.mark.parametrize("force", [False, True])
def test_a_file_is_never_touched(tmp_path: Path, force: bool) -> None:
    (tmp_path / "out").write_text("mine")

    with pytest.raises(ExistsError):
        new_run_directory(str(tmp_path / "out"), force)

    assert (tmp_path / "out").read_text() == "mine"


@pytest.mark.parametrize("out", ["file/below", "s3://bucket/run", "x" * 300])
def test_what_cannot_be_made_is_an_error_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()

    with pytest.raises(ConfigError) as caught:
        new_run_directory(out, False)

    assert caught.value.where == out


def test_an_unfinished_rank_alone_is_a_recording(tmp_path: Path) -> None:
    assert not is_recording(tmp_path)

    rank_directory(tmp_path, 123456).mkdir()

    assert is_recording(tmp_path)
