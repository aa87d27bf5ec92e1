"""What `--by-day` leaves to the night (tests/conftest.py), and which cases are the first of their kind."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from by_day import first_of_each

ROOT = Path(__file__).resolve().parents[2]
MIXED = """
import pytest
from by_day import first_of_each

@pytest.mark.parametrize("n", [1, 2])
def test_quick(n): ...

@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2])
def test_slow(n): ...

@pytest.mark.parametrize("word", first_of_each(["aa", "ab", "ba"], lambda word: word[0]))
@pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_kinds(word, n): ...

@pytest.mark.night
def test_long(): ...
"""
HEAVY = """
import pytest
pytestmark = pytest.mark.slow

@pytest.mark.night
def test_longest(): ...

def test_one(): ...

@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2])
def test_two(n): ...
"""


def collected(folder: Path, *options: str) -> list[str]:
    shutil.copy(ROOT / "tests" / "conftest.py", folder)
    shutil.copytree(ROOT / "tests" / "processes", folder / "processes", dirs_exist_ok=True)
    (folder / "test_mixed.py").write_text(MIXED)
    (folder / "test_heavy.py").write_text(HEAVY)
    files = ["test_mixed.py", "test_heavy.py"]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-c",
        ROOT / "pyproject.toml",
        "--rootdir",
        folder,
    ]
    done = subprocess.run(
        [*map(str, command), *options, *files], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line]


def test_of_the_slow_only_the_first_and_nothing_of_the_night(tmp_path: Path) -> None:
    found = collected(tmp_path, "--by-day")

    assert found == [
        "test_quick[1]", "test_quick[2]", "test_slow[1]", "test_kinds[1-aa]", "test_kinds[1-ba]", "test_one"
    ]  # fmt: skip


def test_all_without_it(tmp_path: Path) -> None:
    assert len(collected(tmp_path)) == 2 + 2 + 6 + 1 + 4


def test_cases_stay_as_they_are_and_in_order() -> None:
    made = first_of_each([("a", 1), ("a", 2), ("b", 3)], lambda case: case[0])

    assert made[0] == ("a", 1)
    assert made[1].values == ("a", 2)
    assert [mark.name for mark in made[1].marks] == ["slow"]
    assert made[2] == ("b", 3)
