"""docs/tasks.md: every command is run on real recordings, and what the page shows is what it prints."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import warm
from recordings import run

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")
EXIT = {
    "check runs/overflow": 1, "check runs/killed": 5, "diff runs/good runs/bad": 1, "checklist runs/good runs/bad": 1,
    "spikes runs/spike --export skip.txt": 1,
}  # fmt: skip
"""Of commands whose exit code is not 0."""
_NUMBER = re.compile(r"[-+≥]?\d[\d.,:^]*(e[-+]?\d+)?")


def shown() -> Iterator[tuple[str, list[str]]]:
    """Each command of the page, with the lines below it."""
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, *screen = part.splitlines()
            yield line.removeprefix("hypocenter "), screen


COMMANDS = list(shown())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recordings of the page, made as it says, in forks."""
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "examples").mkdir()
    (folder / "examples" / "small.py").write_bytes((ROOT / "examples" / "small.py").read_bytes())
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HYPOCENTER_")}
    for names, line in re.findall(r"^for how in ([\w ]+); do hypocenter (.*); done", PAGE, re.MULTILINE):
        for how in names.split():
            words = [sys.executable, "-m", "hypocenter", *line.replace("$how", how).split()]
            warm.run(words, env=kept | {"OMP_NUM_THREADS": "1"}, cwd=folder, timeout=120)
    return folder


def plain(text: str) -> str:
    """A text without what depends on the machine: its numbers, and the folder of a test."""
    return " ".join(_NUMBER.sub("#", re.sub(r"\S*/(?=examples/)", "", text)).split())


@pytest.mark.parametrize(("command", "screen"), COMMANDS, ids=[command for command, _ in COMMANDS])
def test_the_command_prints_what_the_page_shows(
    folder: Path, command: str, screen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    if command.startswith("replay"):  # a process with torch, for which tests/cli/test_report.py has its own
        assert (folder / command.split()[1] / "op.json").is_file()
        return

    said = run(*shlex.split(command))

    printed, at = plain(said.out), 0
    assert said.code == EXIT.get(command, 0), said.err
    if "or soon after" in said.out:
        return  # under load it is written less often where a rank is: the place is an earlier one than on the page
    for line in screen:
        if line != "...":
            at = printed.find(plain(line), at)
            assert at >= 0, f"{line!r} is not in\n{said.out}"


def test_no_task_takes_more_than_three_commands() -> None:
    tasks = re.split(r"^## \d+\. ", PAGE, flags=re.MULTILINE)[1:]

    assert len(tasks) == 10
    assert all(1 <= task.count("\n$ hypocenter ") <= 3 for task in tasks)
