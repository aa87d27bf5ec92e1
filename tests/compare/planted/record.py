"""Train programs with planted differences, one after another in one process: `record.py JOBS.json`.

Each job is {"network", "dtype", "n_microbatches", "edits": [[name, {arguments}], ...], "calibrate", "out"}.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import transformers.modeling_utils  # noqa: F401 - what a warm server loads before it forks
from edits import EDITS
from training import setup


def record(job: dict) -> None:
    program = setup(job["network"], job["dtype"], job.get("n_microbatches", 1))
    for name, arguments in job["edits"]:
        EDITS[name](program, **arguments)
    program.train(Path(job["out"]), calibrate=job.get("calibrate", "never"))


if __name__ == "__main__":
    for one in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
        record(one)
