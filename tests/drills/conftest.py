"""`drill` is imported from this folder, `launch` from that of the ranks."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "ranks")]
