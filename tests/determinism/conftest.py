"""Lets tests of this folder run programs in forks, and name lines of them."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "processes"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "ranks"))
sys.path.insert(0, str(Path(__file__).parent))
