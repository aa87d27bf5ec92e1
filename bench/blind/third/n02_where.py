"""Mean pooling with 0/0 guarded by torch.where after the division: the backward is NaN for an empty bag."""

import torch
import torch.nn.functional as F
from torch import nn
from c import FAULT, finish

torch.manual_seed(0)


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.gate, self.out = nn.Embedding(50, 16), nn.Linear(16, 1), nn.Linear(16, 3)

    def forward(self, ids, mask):
        e = self.emb(ids)
        w = torch.sigmoid(self.gate(e)) * mask[..., None]
        total = w.sum(1)
        if FAULT:
            pooled = torch.where(
                total > 0, (w * e).sum(1) / total, torch.zeros(())
            )  # FAULT: 0/0 in the branch not taken
        else:
            pooled = (w * e).sum(1) / total.clamp(min=1e-6)
        return self.out(pooled)


model = Bag()
opt = torch.optim.Adam(model.parameters(), 2e-3)
losses = []
for step in range(30):
    ids = torch.randint(0, 50, (12, 7))
    n = torch.randint(1, 8, (12,))
    if step == 17:
        n[5] = 0
    mask = (torch.arange(7) < n[:, None]).float()
    loss = F.cross_entropy(model(ids, mask), ids[:, 0] % 3)
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
finish(losses, model)
