"""What `bench.view.verdicts` runs: a small model under DistributedDataParallel, one of whose ranks fails."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn


def main(victim: int, at: int, how: str, mark: str) -> None:
    """Train, and fail."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    own = torch.Generator().manual_seed(1 + dist.get_rank())
    for step in range(4 * at):
        x = torch.randn(8, 16, generator=own)
        if dist.get_rank() == victim and step == at:
            Path(mark).write_text(str(time.time()))
            if how == "raised":
                raise ValueError("the sample has no label")
            if how == "nan":
                x[3] = float("nan")
            else:
                os.kill(os.getpid(), signal.SIGKILL if how == "killed" else signal.SIGSTOP)
        loss = nn.functional.cross_entropy(model(x), torch.randint(4, (8,), generator=own))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.1)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
