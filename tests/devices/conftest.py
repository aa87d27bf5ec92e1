"""Lets the tests of devices share what is made in this folder, and run programs in forks (`warm`)."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "processes")]
