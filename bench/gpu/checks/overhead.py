"""What a step takes, watched and not: GPT-2 of 124 M parameters and a chain of 1,000; and where ours goes."""

from __future__ import annotations

import sys
from pathlib import Path

from bench.gpu.rows import Done, Row, _run

NEEDS = ("cuda",)
PROGRAM = Path(__file__).parents[1] / "pace.py"
WATCHED = {"sentinel": (), "modules": ("--level", "modules")}


def run(device: str, folder: Path) -> list[Row]:
    """Measured, not judged. One after the other, with nothing beside it."""
    rows: list[Row] = []
    for kind, n in (("gpt2", "160"), ("gpt2-compiled", "160"), ("chain", "120")):
        alone = _run([sys.executable, str(PROGRAM), kind, n])
        rows.append(Row(what=f"{kind}, plain", seen=_seen(alone), expected="measured"))
        for level, options in WATCHED.items():
            ours = [sys.executable, "-m", "hypocenter", "run", "--out", str(folder / f"{kind}-{level}"), *options]
            done = _run([*ours, str(PROGRAM), kind, n, "--profile"])
            rows.append(Row(what=f"{kind}, {level}", seen=_seen(done), expected="measured"))
            where = [line.removeprefix("where ") for line in done.out.splitlines() if line.startswith("where ")]
            rows += [Row(what=f"{kind}, {level}, where", seen=each) for each in where]
    return rows


def _seen(done: Done) -> str:
    found = {name: done.told(name) for name in ("step_ms", "mean_ms", "peak_gib")}
    return done.why if found["step_ms"] is None else ", ".join(f"{name} {value}" for name, value in found.items())
