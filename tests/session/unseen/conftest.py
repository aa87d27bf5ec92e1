"""What a program prints, and how it ends, with us and without us."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "processes"))

import warm

ROOT = Path(__file__).parents[3]
SHIM = ROOT / "src" / "hypocenter" / "boot" / "shim"

Said = tuple[int, str, str]  # exit code, stdout, stderr
Twice = Callable[..., tuple[Said, Said]]


@pytest.fixture
def twice(tmp_path: Path) -> Twice:
    """Run a program as it is, then as `hypocenter run` starts it, and give what each said. The recording must exist."""

    def run(program: str, level: str = "sentinel") -> tuple[Said, Said]:
        script, recording = tmp_path / "program.py", tmp_path / "recording"
        script.write_text(program, encoding="utf-8")
        recording.mkdir()
        plain = {key: value for key, value in os.environ.items() if not key.startswith("HYPOCENTER_")}
        plain |= {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
        watched = plain | {
            "PYTHONPATH": os.pathsep.join((str(SHIM), plain["PYTHONPATH"])),
            "HYPOCENTER_RUN": str(recording),
            "HYPOCENTER_CONFIG": json.dumps({"level": level}),
        }
        without, recorded = (
            _said(warm.run([sys.executable, str(script)], env=env, cwd=tmp_path, timeout=300))
            for env in (plain, watched)
        )
        assert list(recording.glob("rank-*")), "nothing was recorded"
        return without, recorded

    return run


def _said(done: subprocess.CompletedProcess[str]) -> Said:
    return done.returncode, done.stdout, done.stderr
