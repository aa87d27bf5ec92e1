"""Lets these tests share `recordings` of the commands' tests, and the gallery's answer book."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TESTS / "cli"), str(TESTS / "processes"), str(TESTS / "gallery")]
