"""What the drills run: a small model under DistributedDataParallel, one of whose ranks kills itself, once.

`torchrun --nproc-per-node 8 bench/retention/victim.py '{"steps": 40, "victim": 3, "at": 17}'`
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn


def main(steps: int, victim: int, at: int) -> None:
    """Train."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    own = torch.Generator().manual_seed(1 + dist.get_rank())
    is_victim = dist.get_rank() == victim and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    for step in range(steps):
        if is_victim and step == at:
            os.kill(os.getpid(), signal.SIGKILL)
        x = torch.randn(8, 16, generator=own)
        loss = nn.functional.cross_entropy(model(x), torch.randint(4, (8,), generator=own))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    # torch 2.13 hangs by itself where a group of Gloo ends before its thread has let go of the last reduction: that
    # takes the GIL, and the end of the group holds it while it waits for the thread.
    time.sleep(1.0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
