"""The package `networks` is imported from the folder above, `invented` from this one."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
