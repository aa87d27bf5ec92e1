"""Start programs of a plan in forks of a warm Python, where that does the same."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import warm
from two_frameworks import PYTHON

TIMEOUT_S = 300.0


def start(argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, output: Path, timeout_s: float | None) -> int:
    """As `hypocenter.align.children.start`."""
    try:
        done = warm.run(argv, env=env, timeout=timeout_s or TIMEOUT_S, cwd=cwd)
    except subprocess.TimeoutExpired:
        return 124
    output.write_text(done.stdout + done.stderr, encoding="utf-8")
    return done.returncode


def start_beside(argv: Sequence[str], **others: Any) -> int:
    """The same; what MindSpore's Python is to run is a fork of that Python, and `hypocenter run` of it too."""
    return start([PYTHON if PYTHON in argv else argv[0], *argv[1:]], **others)
