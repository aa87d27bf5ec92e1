"""A loop that adds up gradients of micro-batches, on one rank or on several, and saves after every step.

python train.py [--clean] [--batch B] [--accumulate K] [--out FOLDER] [--resume FILE]
"""

import argparse
import os
from pathlib import Path

import torch
from torch import distributed, nn

parser = argparse.ArgumentParser()
parser.add_argument("--clean", action="store_true")
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--out", type=Path)
parser.add_argument("--resume", type=Path)
given = parser.parse_args()
rank, n_ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
torch.manual_seed(0)
model: nn.Module = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
if n_ranks > 1:
    distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
xs, ys = torch.randn(256, 8), torch.randn(256, 1)
first = 0
if given.resume:
    saved = torch.load(given.resume, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    first = saved["step"]
of_step = given.batch * given.accumulate * n_ranks
for step in range(first, len(xs) // of_step):
    for micro in range(given.accumulate):
        begin = step * of_step + (micro * n_ranks + rank) * given.batch
        rows = slice(begin, begin + given.batch)
        (nn.functional.mse_loss(model(xs[rows]), ys[rows]) / given.accumulate).backward()
    optimizer.step()
    optimizer.zero_grad()
    if given.out:
        states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**states, "step": step + 1}, given.out / "last.pt")
if n_ranks > 1:
    distributed.destroy_process_group()
