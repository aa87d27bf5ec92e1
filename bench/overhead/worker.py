"""One process that trains with one tool attached and takes a step whenever it is told to.

`python -m bench.overhead.worker WORKLOAD TOOL FOLDER`: a line on stdin asks for one step, a line of JSON on stdout
answers. A process of its own, because hooks are global to a process: a plain step beside an attached tool would not be
plain.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path


def main(workload_name: str, tool_name: str, folder: str) -> None:
    """Serve steps until stdin closes."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the tools print must not mix with the answers
    import torch

    from bench.overhead.tools import TOOLS
    from bench.overhead.workloads import build

    torch.set_num_threads(1)
    workload = build(workload_name)
    n_parameters = sum(p.numel() for p in workload.model.parameters())
    with TOOLS[tool_name].attach(workload, Path(folder)) as step:
        print(json.dumps({"n_parameters": n_parameters}), file=answers)
        for _ in sys.stdin:
            cpu, wall = (
                time.process_time(),
                time.perf_counter(),
            )  # CPU time of all threads: a helper thread is a cost too
            loss = step()
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # ru_maxrss is in KiB on Linux
            answer = {"cpu_s": cpu, "wall_s": wall, "loss": loss.hex(), "peak_mib": peak_mib}
            print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
