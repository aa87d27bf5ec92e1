"""Run one of the programs twice and compare, and say which line of it holds a text."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import warm

from hypocenter.compare.repeats.answer import Determinism
from hypocenter.compare.repeats.engine import compare_repeats
from hypocenter.config import to_json
from hypocenter.twins.bits import recording_bits

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
SOURCE = HERE.parents[1] / "src"


def twice(name: str, folder: Path, *, steps: int = 3, deterministic: bool = False) -> Determinism:
    """What `hypocenter determinism NAME` finds, the runs in forks."""
    runs = [folder / f"{'deterministic' if deterministic else 'plain'}-{n}" for n in (1, 2)]
    config = to_json(recording_bits(steps, deterministic=deterministic))
    for run in runs:
        argv = [sys.executable, str(HERE / "fresh.py"), str(run), config, str(PROGRAMS / name)]
        done = warm.run(argv, env=environment(), timeout=120)
        assert done.returncode == 0, done.stderr
    return compare_repeats(runs)


def environment() -> dict[str, str]:
    """Without options from outside; the package as it is in this checkout."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HYPOCENTER_")}
    return kept | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}


def line_of(name: str, text: str) -> int:
    """Number of the first line of a program that holds this text."""
    lines = (PROGRAMS / name).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)
