"""Every reading command says what of a recording cannot be read, and shows the rest: missing is no empty table."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from recordings import record, run

COMMANDS = (
    ("show", "RUN"), ("show", "RUN", "--values"), ("show", "RUN", "--frames", 3), ("show", "RUN", "--ranks"),
    ("show", "RUN", "--sql", "from steps"), ("check", "RUN"), ("headroom", "RUN"), ("cure", "RUN", "--no-rerun"),
    ("diff", "RUN", "RUN"), ("report", "RUN", "-o", "page.html"),
)  # fmt: skip


def cut(file: Path) -> None:
    """As a full disk or a broken copy leaves it."""
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def empty(file: Path) -> None:
    file.write_bytes(b"")


def overwritten(file: Path) -> None:
    """Bytes in the middle are others."""
    content = bytearray(file.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 64] = b"\xa5" * 64
    file.write_bytes(bytes(content))


def sealed(path: Path, kind: str) -> Path:
    (file,) = path.glob(f"rank-00000/sealed-{kind}-*.parquet")
    return file


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(map(str, words)))
@pytest.mark.parametrize("harm", [cut, empty, overwritten])
def test_every_command_names_the_file_that_cannot_be_read(
    words: tuple[object, ...], harm: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = record(tmp_path / "run")
    file = sealed(path, "events")
    harm(file)

    said = run(*(path if word == "RUN" else word for word in words))

    assert said.code in (0, 1, 4, 5)
    assert file.name in (said.out + said.err).replace("\n", "").replace(" ", "")
    assert "Traceback" not in said.err


@pytest.mark.parametrize("option", [(), ("--values",), ("--frames", "3")], ids=" ".join)
def test_show_has_no_empty_table_where_the_readings_are_lost(option: tuple[str, ...], tmp_path: Path) -> None:
    path = record(tmp_path / "run")
    cut(sealed(path, "events"))

    said = run("show", path, *option)

    assert said.code == 4
    assert said.out == ""
    assert said.err.startswith("error[corrupt-recording]: nothing of this can be read\n")


def test_show_as_json_says_that_the_readings_are_lost(tmp_path: Path) -> None:
    path = record(tmp_path / "run")
    cut(sealed(path, "events"))

    said = run("show", path, "--json")

    assert said.code == 4
    assert json.loads(said.out)["slug"] == "corrupt-recording"


def test_show_gives_what_is_left_of_the_others(tmp_path: Path) -> None:
    path = record(tmp_path / "run")
    cut(sealed(path, "steps"))

    said = run("show", path)

    assert said.code == 0
    assert "encoder.ff.wi" in said.out
    assert "sealed-steps" in said.err


def test_a_whole_recording_is_shown_without_a_note(tmp_path: Path) -> None:
    assert "note:" not in run("show", record(tmp_path / "run")).err
