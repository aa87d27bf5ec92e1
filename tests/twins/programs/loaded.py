"""A loop over a DataLoader whose dataset augments its samples.

    python loaded.py [N_WORKERS] [KIND]

KIND: global (torch's, NumPy's and Python's generators), own (one of the dataset's that each worker seeds by itself),
copied (the same, and nobody seeds it), fixed (worker_init_fn gives each worker the same seed), counted (the dataset
counts its samples), stream (split over the workers), whole (a stream that is not).
"""

import random
import sys
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

n_workers, kind = int(sys.argv[1]), sys.argv[2]
torch.manual_seed(0)
np.random.seed(0)
random.seed(0)
samples = torch.randn(64, 8)


class Augmented(Dataset):
    def __init__(self) -> None:
        self.rng = np.random.default_rng(5)
        self.count = 0

    def __len__(self) -> int:
        return len(samples)

    def __getitem__(self, index: int) -> torch.Tensor:
        if kind in ("own", "copied"):
            return samples[index] + float(self.rng.normal())
        self.count += kind == "counted"
        return samples[index] + float(np.random.normal()) + random.random() + torch.rand(1) + self.count


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        first, by = (info.id, info.num_workers) if info is not None and kind == "stream" else (0, 1)
        return iter(samples[first::by])


def start(_: int) -> None:
    info = get_worker_info()
    if kind == "fixed":
        np.random.seed(7)
    elif kind == "own":
        info.dataset.rng = np.random.default_rng(info.seed)


model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
if kind in ("stream", "whole"):
    loader = DataLoader(Stream(), batch_size=4, num_workers=n_workers)
else:
    loader = DataLoader(Augmented(), batch_size=4, shuffle=True, num_workers=n_workers, worker_init_fn=start)
for batch in loader:
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
