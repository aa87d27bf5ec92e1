"""What `--workers` reports is what one process would report, and a worker that dies costs its one test."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ONE = """
import os, warnings
import pytest

@pytest.fixture(scope="module")
def made(tmp_path_factory):
    print("made in", os.getpid())
    return tmp_path_factory.mktemp("shared")

def test_makes(made): (made / "file").write_text(str(os.getpid()))
def test_finds(made): assert (made / "file").read_text() == str(os.getpid())
def test_fails(): print("said before"); assert 1 == 2
def test_is_skipped(): pytest.skip("no reason")
def test_warns(): warnings.warn("mind this")
"""
DIES = """
import os, signal
def test_before(): ...
def test_dies(): os.kill(os.getpid(), signal.SIGKILL)
def test_after(): ...
"""


def ran(folder: Path, files: dict[str, str], *options: str) -> str:
    shutil.copy(ROOT / "tests" / "conftest.py", folder)
    shutil.copytree(ROOT / "tests" / "processes", folder / "processes", dirs_exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder), *files]
    done = subprocess.run([*command, *options], cwd=folder, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout


def test_workers_report_what_one_process_would(tmp_path: Path) -> None:
    files = {f"test_{name}.py": ONE for name in ("a", "b", "c")}

    ours = ran(tmp_path, files, "--workers", "2")
    alone = ran(tmp_path, files)

    for said in (ours, alone):
        assert "3 failed, 9 passed, 3 skipped, 3 warnings" in said
        assert said.count("assert 1 == 2") == 3 * 3  # in the text, the error and the summary
        assert said.count("said before\n") == 3
        assert said.count("UserWarning: mind this") == 3
        assert sum(int(n) for n in re.findall(r"SKIPPED \[(\d)\] .*: no reason", said)) == 3


def test_one_that_dies_fails_its_test_and_no_other(tmp_path: Path) -> None:
    said = ran(tmp_path, {"test_a.py": DIES, "test_b.py": "def test_other(): ..."}, "--workers", "1")

    assert "1 failed, 3 passed" in said
    assert "FAILED test_a.py::test_dies - the worker that ran this test ended with -9" in said


def test_files_of_long_tests_are_begun_first(tmp_path: Path) -> None:
    files = {f"test_{name}.py": f"def test_{name}(): ..." for name in ("a", "b")}
    marks = {"c": "long", "d": "slow"}
    files |= {
        f"test_{name}.py": f"import pytest\n@pytest.mark.{mark}\ndef test_{name}(): ..." for name, mark in marks.items()
    }

    said = ran(tmp_path, files, "--workers", "1", "-v")

    assert re.findall(r"::test_(\w) PASSED", said) == ["c", "d", "a", "b"]


def test_the_first_failure_ends_all_where_that_is_asked(tmp_path: Path) -> None:
    long = "import time\ndef test_long(): time.sleep(600)"
    files = {"test_a.py": "def test_fails(): assert False", "test_b.py": long}

    said = ran(tmp_path, files, "--workers", "2", "-x")

    assert "stopping after 1 failures" in said
