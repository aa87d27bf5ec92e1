"""record/run_file.py: whole at any moment, first start wins, the worst end stays, and nothing raises."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from hypocenter.nouns import Run
from hypocenter.record.run_file import finish_run, start_run


def read(directory: Path) -> Run:
    return msgspec.json.decode((directory / "run.json").read_bytes(), type=Run)


def test_start_then_finish(tmp_path: Path) -> None:
    assert start_run(tmp_path / "r", ["python", "t.py"], {"level": "ops"}, 2, {"torch": "2.13.0"}) == ""
    started = read(tmp_path / "r")

    assert finish_run(tmp_path / "r", "failed", 7, ["cut", "cut"]) == ""
    ended = read(tmp_path / "r")

    assert (started.name, started.status, started.ended, started.exit_code) == ("r", "running", None, None)
    assert (started.command, started.config, started.world_size) == (("python", "t.py"), {"level": "ops"}, 2)
    assert (ended.status, ended.exit_code, ended.warnings) == ("failed", 7, ("cut",))
    assert (ended.started, ended.versions) == (started.started, {"torch": "2.13.0"})
    assert ended.ended is not None
    assert ended.ended >= ended.started
    assert [p.name for p in (tmp_path / "r").iterdir()] == ["run.json"]


def test_the_first_start_wins(tmp_path: Path) -> None:
    for rank in range(3):
        assert start_run(tmp_path, [f"rank{rank}"], {}, 3, {}) == ""

    assert read(tmp_path).command == ("rank0",)


def test_later_starts_add_what_the_first_could_not_know(tmp_path: Path) -> None:
    start_run(tmp_path, ["torchrun", "t.py"], {"level": "ops"}, 1, {"hypocenter": "1"})

    start_run(tmp_path, ["t.py"], {}, 8, {"hypocenter": "2", "torch": "2.13.0"})

    run = read(tmp_path)
    assert (run.command, run.config, run.world_size) == (("torchrun", "t.py"), {"level": "ops"}, 8)
    assert run.versions == {"hypocenter": "1", "torch": "2.13.0"}


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ([("finished", 0), ("failed", 1)], ("failed", 1)),
        ([("failed", 1), ("finished", 0)], ("failed", 1)),
        ([("failed", 1), ("killed", -9), ("finished", 0)], ("failed", 1)),
        ([("finished", 0), ("killed", -9)], ("killed", -9)),
        ([("finished", None), ("finished", 0)], ("finished", 0)),
    ],
)
def test_the_worst_end_stays(tmp_path: Path, ends: list[tuple[str, int]], expected: tuple[str, int]) -> None:
    start_run(tmp_path, [], {}, 1, {})

    for number, (status, code) in enumerate(ends):
        finish_run(tmp_path, status, code, [f"warning {number}"])

    run = read(tmp_path)
    assert (run.status, run.exit_code) == expected
    assert run.warnings == tuple(f"warning {n}" for n in range(len(ends)))


def test_many_ranks_at_once_leave_one_whole_file_with_every_warning(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from hypocenter.record.run_file import finish_run, start_run
sys.stdin.read(1)  # all start together
for number in range(10):
    assert start_run(Path(sys.argv[1]), [sys.argv[2]], {}, 4, {}) == ""
    assert finish_run(Path(sys.argv[1]), "finished", 0, [f"{sys.argv[2]}.{number}"]) == ""
"""
    ranks = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(rank)], stdin=subprocess.PIPE)
        for rank in range(4)
    ]
    for rank in ranks:
        rank.communicate(b"g", timeout=60)

    assert [rank.returncode for rank in ranks] == [0] * 4
    assert set(read(tmp_path).warnings) == {f"{rank}.{number}" for rank in range(4) for number in range(10)}
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]


def test_values_that_json_cannot_hold_are_written_as_text(tmp_path: Path) -> None:
    loop: list[object] = []
    loop.append(loop)
    config = {"path": Path("/x"), "bad\udce9": "caf\udce9", "loop": loop, "nan": float("nan"), "set": {1}}

    assert start_run(tmp_path, ["caf\udce9"], config, 1, {"torch": None}) == ""
    assert finish_run(tmp_path, "finished", 0, ["\ud800"]) == ""

    run = read(tmp_path)
    assert run.command == ("caf\\udce9",)
    assert run.config["path"] == "/x"
    assert run.config["bad\\udce9"] == "caf\\udce9"
    assert run.warnings == ("\\ud800",)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1, "name": 3}', "[" * 5000])
def test_finish_replaces_a_broken_run_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)

    assert finish_run(tmp_path, "failed", 1) == ""

    assert (read(tmp_path).name, read(tmp_path).status) == (tmp_path.name, "failed")


def test_what_cannot_be_written_is_said_and_never_raised(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")

    assert "file" in start_run(tmp_path / "file", [], {}, 1, {})
    assert "file" in finish_run(tmp_path / "file", "finished", 0)
    assert (tmp_path / "file").read_text() == "mine"


def test_is_readable_by_a_person(tmp_path: Path) -> None:
    start_run(tmp_path, ["a"], {"level": "ops"}, 1, {})

    text = (tmp_path / "run.json").read_text()

    assert text == json.dumps(json.loads(text), indent=2, ensure_ascii=False) + "\n"
