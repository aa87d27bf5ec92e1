"""A recommender with many items; a helper moves every batch to device and dtype."""

import torch
import torch.nn.functional as F
from kit import FAULT, tell
from torch import nn

ITEMS, USERS, D = 5000, 300, 16


def to_device(batch, dtype):
    if FAULT:
        return {k: v.to("cpu", dtype) for k, v in batch.items()}
    return {k: v.to("cpu", dtype) if v.is_floating_point() else v.to("cpu") for k, v in batch.items()}


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.item = nn.Embedding(USERS, D), nn.Embedding(ITEMS, D)
        self.dense = nn.Linear(4, D)
        self.head = nn.Sequential(nn.Linear(2 * D, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, batch):
        user = self.user(batch["user"].long()) + self.dense(batch["dense"].float())
        return self.head(torch.cat([user, self.item(batch["item"].long())], dim=1)).squeeze(1)


torch.manual_seed(0)
users, items = torch.randint(0, USERS, (4000,)), torch.randint(0, ITEMS - 4, (4000,))
dense = torch.randn(4000, 4)
rating = torch.randn(ITEMS)[items] + dense[:, 0]
model = Recommender()
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
losses = []
for step in range(50):
    at = torch.randint(0, 4000, (64,))
    batch = to_device({"user": users[at], "item": items[at], "dense": dense[at]}, torch.float16)
    loss = F.mse_loss(model(batch), rating[at])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
tell(model, losses)
