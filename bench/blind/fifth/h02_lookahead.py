"""Lookahead around AdamW: every five steps the weights go half-way back, outside of the optimizer."""

import torch
import torch.nn.functional as F
from kit import tell
from torch import nn

torch.manual_seed(0)
x = torch.randn(512, 16)
y = (x @ torch.randn(16, 4)).argmax(dim=1)
model = nn.Sequential(nn.Linear(16, 48), nn.LayerNorm(48), nn.GELU(), nn.Linear(48, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
slow = [p.detach().clone() for p in model.parameters()]
losses = []
for step in range(50):
    at = torch.randint(0, len(x), (32,))
    loss = F.cross_entropy(model(x[at]), y[at])
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    optimizer.step()
    if step % 5 == 4:
        with torch.no_grad():
            torch._foreach_lerp_(slow, list(model.parameters()), 0.5)
            torch._foreach_copy_(list(model.parameters()), slow)
    losses.append(loss.item())
tell(model, losses)
