"""What the front door says of a program that a test holds as text."""

import json
import os
import sys
from pathlib import Path

import warm


def diagnosed(text: str, folder: Path) -> dict:
    """What is said of a program."""
    ran(text, folder)
    return json.loads((folder / "run" / "diagnosis.json").read_text(encoding="utf-8"))


def ran(text: str, folder: Path, stream: str = "stderr") -> str:
    """Run it under Hypocenter; what stands on that stream."""
    script, run = folder / "train.py", folder / "run"
    script.write_text(text, encoding="utf-8")
    env = {key: value for key, value in os.environ.items() if not key.startswith("HYPOCENTER_")}
    command = [sys.executable, "-m", "hypocenter", "run", "--out", str(run), str(script)]
    done = warm.run(command, env=env | {"NO_COLOR": "1"}, timeout=120, cwd=folder)
    assert "switched off" not in done.stderr, done.stderr
    return getattr(done, stream)


def line_of(text: str, mark: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if mark in line)
