"""Trains with checkpoints; the first attempt's last rank fails after some steps, a later attempt goes on from the last.

torchrun --nproc-per-node 2 --max-restarts 1 attempt_job.py FOLDER --fail-at 6
"""

import argparse
import gc
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(a):
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    checkpoint = Path(a.folder) / "checkpoint.pt"
    start = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        start = saved["step"]
    is_first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    for step in range(start, a.steps):
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        if (step + 1) % 4 == 0 and dist.get_rank() == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}, checkpoint)
        dist.barrier()
        if is_first and step == a.fail_at:
            raise SystemExit(3)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--fail-at", type=int, default=-1)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()
