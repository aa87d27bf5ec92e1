"""A script in a fork, recorded with --op-bits, whose generators start as a fresh Python's do: from entropy.

    python tests/determinism/fresh.py RUN CONFIG SCRIPT ARGS...

In a fork of a Python that has torch they would all stand at what that one drew when it started.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

import numpy as np
import torch


def main() -> None:
    torch.seed()
    np.random.seed()
    run, config, script, *rest = sys.argv[1:]
    os.environ.update(HYPOCENTER_RUN=run, HYPOCENTER_CONFIG=config)
    from hypocenter.session import start_from_env

    start_from_env()
    sys.argv = [script, *rest]
    sys.path.insert(0, str(Path(script).resolve().parent))
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
