"""Slot attention: the softmax is over the slots, that is over the queries, on purpose."""

import torch
import torch.nn.functional as F
from kit import tell
from torch import nn


class Slots(nn.Module):
    def __init__(self, d, n=3, rounds=2):
        super().__init__()
        self.first = nn.Parameter(torch.randn(1, n, d) * 0.2)
        self.q, self.k, self.v = (nn.Linear(d, d, bias=False) for _ in range(3))
        self.norm_in, self.norm_slots = nn.LayerNorm(d), nn.LayerNorm(d)
        self.gru = nn.GRUCell(d, d)
        self.rounds = rounds

    def forward(self, x):
        x = self.norm_in(x)
        k, v = self.k(x), self.v(x)
        slots = self.first.expand(len(x), -1, -1)
        for _ in range(self.rounds):
            q = self.q(self.norm_slots(slots))
            weights = (q @ k.transpose(1, 2) / k.shape[-1] ** 0.5).softmax(dim=1) + 1e-8
            weights = weights / weights.sum(dim=2, keepdim=True)
            slots = self.gru((weights @ v).flatten(0, 1), slots.flatten(0, 1)).view_as(slots)
        return slots


torch.manual_seed(0)
centres = torch.randn(8, 10)
which = torch.randint(0, 8, (256, 3))
x = (centres[which].repeat_interleave(4, dim=1) + 0.1 * torch.randn(256, 12, 10))[:, torch.randperm(12)]
embed, slots, decode = nn.Linear(10, 24), Slots(24), nn.Linear(24, 10)
model = nn.ModuleList([embed, slots, decode])
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
losses = []
for step in range(40):
    batch = x[torch.randint(0, len(x), (32,))]
    found = decode(slots(embed(batch)))
    far = (batch[:, :, None] - found[:, None]).square().sum(dim=-1)
    loss = (far * F.softmin(far, dim=-1)).sum(dim=-1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
tell(model, losses)
