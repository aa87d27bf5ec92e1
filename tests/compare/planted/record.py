"""Train programs with planted differences, one after another in one process: `record.py JOBS.json`.

Each job is {"network", "dtype", "n_microbatches", "n_steps", "edits": [[name, {arguments}], ...], "calibrate", "out"}.
Where the environment has ranks, as torchrun's, each job is trained by all of them.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import transformers.modeling_utils  # noqa: F401 - what a warm server loads before it forks
from edits import EDITS
from training import setup


def record(job: dict) -> None:
    program = setup(job["network"], job["dtype"], job.get("n_microbatches", 1))
    program.n_steps = job.get("n_steps", program.n_steps)
    for name, arguments in job["edits"]:
        EDITS[name](program, **arguments)
    program.train(Path(job["out"]), calibrate=job.get("calibrate", "never"))


if __name__ == "__main__":
    torch.set_num_threads(1)
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("gloo")
    for one in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
        record(one)
    if dist.is_initialized():
        gc.collect()
        dist.barrier()
        dist.destroy_process_group()
