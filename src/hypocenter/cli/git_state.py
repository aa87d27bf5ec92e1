"""From which state of its source a program is started, as git knows it. Nothing of the repository is changed."""

from __future__ import annotations

import os
import subprocess

TIMEOUT_S = 2.0  # of each question: a large repository on a slow disk is not waited for


def git_state() -> str:
    """Return `3f2a9c1b on main, 2 files changed` of the current folder; empty without a repository or an answer."""
    commit = _asked("rev-parse", "--short=12", "HEAD")
    if not commit:
        return ""
    branch = _asked("symbolic-ref", "--quiet", "--short", "HEAD")
    changed = _asked("status", "--porcelain", "--untracked-files=no")
    n = len(changed.splitlines()) if changed is not None else None
    state = ", state not known" if n is None else f", {n} file{'' if n == 1 else 's'} changed" if n else ""
    return f"{commit}{f' on {branch}' if branch else ''}{state}"


def _asked(*words: str) -> str | None:
    """Return what git answers; None when it does not."""
    try:
        done = subprocess.run(
            ["git", *words], capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=False,
            env=os.environ | {"GIT_OPTIONAL_LOCKS": "0"}, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
