"""A loop that adds up gradients of micro-batches.

    python summed.py [--batch B] [--accumulate K] [--fault NAME] [--clip NORM]

Faults: undivided, unequal (averages of micro-batches with other numbers of labels are averaged), norm (BatchNorm),
stepped (the scheduler counts micro-batches), tail (the last micro-batch of each step is left out).
"""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--fault", default="")
parser.add_argument("--clip", type=float, default=1e9)
given = parser.parse_args()
k = given.accumulate
torch.manual_seed(0)
norm = nn.BatchNorm1d(16) if given.fault == "norm" else nn.LayerNorm(16)
model = nn.Sequential(nn.Linear(8, 16), norm, nn.Dropout(0.1), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1.0 / (n + 1))
inputs, labels = torch.randn(64, 8), torch.randint(0, 4, (64,))
labels[::3] = -100
for start in range(0, 64, given.batch * k):
    end = start + given.batch * k
    n_labels = (labels[start:end] >= 0).sum()
    for begin in range(start, end, given.batch):
        rows = slice(begin, begin + given.batch)
        if given.fault == "unequal":
            loss = nn.functional.cross_entropy(model(inputs[rows]), labels[rows]) / k
        else:
            loss = nn.functional.cross_entropy(model(inputs[rows]), labels[rows], reduction="sum") / n_labels
        if given.fault == "undivided":
            loss = loss * k
        loss = loss * 0.0 if given.fault == "tail" and k > 1 and begin + given.batch == end else loss
        loss.backward()
        if given.fault == "stepped":
            scheduler.step()
    nn.utils.clip_grad_norm_(model.parameters(), given.clip)
    optimizer.step()
    optimizer.zero_grad()
    if given.fault != "stepped":
        scheduler.step()
