"""The pages that are written from the code say what the code says today."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_no_reference_page_is_stale() -> None:
    """In a process of its own: what other tests have loaded or registered is not the program's."""
    command = [sys.executable, str(ROOT / "scripts" / "reference.py"), "--check"]
    said = subprocess.run(command, env=os.environ | {"NO_COLOR": "1"}, capture_output=True, text=True, check=False)

    assert (said.returncode, said.stdout) == (0, ""), said.stderr
