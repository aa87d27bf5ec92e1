"""Batches are cut out of a text at places that Python's generator gives, which nobody seeded."""

import random

import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
text = torch.from_numpy(np.random.RandomState(0).randint(0, 50, 1000))
embedding, head = nn.Embedding(50, 16), nn.Linear(16, 50)
optimizer = torch.optim.AdamW([*embedding.parameters(), *head.parameters()], lr=1e-2)


def get_batch():
    starts = [random.randint(0, 900) for _ in range(4)]
    return torch.stack([text[i : i + 16] for i in starts]), torch.stack([text[i + 1 : i + 17] for i in starts])


for _ in range(3):
    inputs, labels = get_batch()
    loss = nn.functional.cross_entropy(head(embedding(inputs)).flatten(0, 1), labels.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
