"""Seeded with care in the main process; each worker seeds NumPy anew from the operating system."""

import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        sample = np.full(8, index, dtype=np.float32)
        return sample + np.random.normal(0, 0.1, 8).astype(np.float32)


def seed_worker(number):
    np.random.seed()


def main():
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for batch in DataLoader(Noisy(), batch_size=8, shuffle=True, num_workers=1, worker_init_fn=seed_worker):
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
