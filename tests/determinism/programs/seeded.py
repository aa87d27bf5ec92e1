"""Dropout, a shuffled loader, a worker that draws: all of it seeded. What differs from run to run reaches nothing."""

import random
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        sample = np.full(8, index, dtype=np.float32)
        return sample + np.random.normal(0, 0.1, 8).astype(np.float32) + random.random()


def main():
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    padded = torch.empty(16, 8)
    for batch in DataLoader(Noisy(), batch_size=8, shuffle=True, num_workers=1):
        padded[:8] = batch
        loss = model(padded[:8]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        elapsed = torch.tensor(time.time()) * 2
        print(
            float(loss.detach()), float(elapsed), torch.rand(1, generator=torch.Generator().manual_seed(time.time_ns()))
        )


if __name__ == "__main__":
    main()
