"""One process that trains and takes steps when it is told to, with one tool attached or without it.

`python -m bench.overhead.worker WORKLOAD TOOL FOLDER`: a line on stdin, `plain` or `tool`, asks for a block of steps, a
line of JSON on stdout answers. A tool that comes off again is attached and taken off as asked; the others stay on, and
their plain steps are taken in a process of their own.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from bench.overhead.tools import Tool
    from bench.overhead.workloads import Workload

N_WARM_UP = 2  # untimed steps after each change of side: caches fill, the optimizer's state is made, names are found
N_TIMED = 3  # steps of a block


class Trainer:
    """A workload that is trained with the tool or without it, a block of steps at a time."""

    def __init__(self, workload: Workload, tool: Tool, folder: Path) -> None:
        self._workload, self._tool, self._folder = workload, tool, folder
        self._step: Callable[[], float] = workload.step
        self._attached = ExitStack()
        self._side = ""
        self._n_attached = 0

    def block(self, side: str) -> dict[str, Any]:
        """Take `N_TIMED` steps: CPU seconds of all threads (a helper thread is a cost too), losses, peak memory."""
        if side != self._side:
            self._change(side)
        cpu = time.process_time()
        losses = [self._step() for _ in range(N_TIMED)]
        cpu = time.process_time() - cpu
        peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # ru_maxrss is in KiB on Linux
        return {"cpu_s": cpu, "losses": [loss.hex() for loss in losses], "peak_mib": peak_mib}

    def _change(self, side: str) -> None:
        self._attached.close()
        self._side, self._step = side, self._workload.step
        attach = self._tool.attach if side == "tool" else self._tool.baseline
        if attach is not None:
            self._n_attached += 1
            folder = self._folder / str(self._n_attached)
            self._step = self._attached.enter_context(attach(self._workload, folder))
        for _ in range(N_WARM_UP):
            self._step()


def main(workload_name: str, tool_name: str, folder: str) -> None:
    """Serve blocks of steps until stdin closes."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the tools print must not mix with the answers
    import torch

    from bench.overhead.tools import TOOLS
    from bench.overhead.workloads import build

    torch.set_num_threads(1)
    workload = build(workload_name)
    n_parameters = sum(p.numel() for p in workload.model.parameters())
    trainer = Trainer(workload, TOOLS[tool_name], Path(folder))
    print(json.dumps({"n_parameters": n_parameters}), file=answers)
    for side in sys.stdin:
        block = trainer.block(side.strip())
        print(json.dumps(block | {"weights": _digest(workload.model)}), file=answers)


def _digest(model: nn.Module) -> int:
    """Of the bits of all parameters."""
    digest = 0
    for parameter in model.parameters():
        digest = zlib.crc32(parameter.detach().numpy(), digest)
    return digest


if __name__ == "__main__":
    main(*sys.argv[1:])
