"""From which state of its source a program is started."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hypocenter.cli.git_state import git_state


def git(folder: Path, *words: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


def test_commit_branch_and_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    outside = git_state()
    git(tmp_path, "init")
    (tmp_path / "a.py").write_text("1")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "x")
    clean = git_state()
    (tmp_path / "a.py").write_text("2")
    (tmp_path / "untracked.py").write_text("3")
    changed = git_state()
    git(tmp_path, "checkout", "--detach")

    assert outside == ""
    commit, _, branch = clean.partition(" on ")
    assert (len(commit), branch) == (12, "main")
    assert changed == f"{clean}, 1 file changed"
    assert git_state() == f"{commit}, 1 file changed"


def test_no_git_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    assert git_state() == ""
