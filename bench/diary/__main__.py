"""Run the benchmark: `python -m bench.diary [--tool NAME] [--rounds N] [--pairs N] [--write]`."""

from __future__ import annotations

import sys

from bench.overhead.__main__ import main
from bench.overhead.workloads import SCALED

if __name__ == "__main__":
    sys.exit(main(SCALED))
