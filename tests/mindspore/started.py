"""Programs of MindSpore that tests start: in forks of a Python that has it already, or the slow way, as a user does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "processes"))

import warm

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 300  # machines under load take long


def started(*words: object, folder: Path, is_cold: bool = False, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these words in a folder, with more environment; with `is_cold` no imports are shared."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("HYPOCENTER", "MINDSPORE"))}
    env |= {"PYTHONPATH": str(ROOT / "src"), "GLOG_v": "3", "OMP_NUM_THREADS": "1", "NO_COLOR": "1", **variables}
    command = [sys.executable, *map(str, words)]
    if not is_cold:
        return warm.run(command, env=env, cwd=folder, timeout=SECONDS)
    return subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)
