"""Nobody has thought of seeds."""

import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = np.random.default_rng(1).normal(size=(32, 8)).astype(np.float32)
for batch in DataLoader(TensorDataset(torch.from_numpy(data)), batch_size=8, shuffle=True):
    noise = random.gauss(0, 0.1) + np.random.rand()
    loss = (model(batch[0]) + noise).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
