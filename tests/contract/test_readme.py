"""The README keeps its promise of two commands, and CI runs the second."""

from __future__ import annotations

import os
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_readme_has_exactly_two_commands_and_both_can_be_run() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")

    commands = re.findall(r"^ +(\./scripts/\w+)", readme, re.MULTILINE)

    assert commands == ["./scripts/demo", "./scripts/test"]
    assert all(os.access(ROOT / command, os.X_OK) for command in commands)


def test_ci_runs_what_the_readme_says() -> None:
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()

    assert lines[-1] == "exec ./scripts/test"
    assert "set -euo pipefail" in lines


def test_readme_shows_what_the_demo_really_printed() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.search(r"<!-- demo output.*?```text\n(.*?)```\n<!-- end of demo output -->", readme, re.DOTALL)

    assert shown is not None
    assert "placeholder" not in shown[1]
    for promised in ("error[HC", "modeling_t5.py", "at step ", "format-overflow", "65504", "verified"):
        assert promised in shown[1]
