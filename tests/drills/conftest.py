"""`drill` is imported from this folder, `launch` from that of the ranks, `warm` from that of the processes."""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(Path(__file__).parent), str(TESTS / "ranks"), str(TESTS / "processes")]
