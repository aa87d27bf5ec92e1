"""The package in examples/plugin works: its own tests pass, and its entry points name files that exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = ROOT / "examples" / "plugin"


def test_its_own_tests_pass() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(PLUGIN / "src")])}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(PLUGIN)]

    done = subprocess.run(command, cwd=PLUGIN, capture_output=True, text=True, env=environment, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


def test_its_entry_points_name_its_files() -> None:
    text = (PLUGIN / "pyproject.toml").read_text(encoding="utf-8")

    modules = re.findall(r'^[\w-]+ = "(hypocenter_example\.\w+)"$', text, re.MULTILINE)

    assert len(modules) == 2
    assert all((PLUGIN / "src" / Path(*module.split("."))).with_suffix(".py").exists() for module in modules)
