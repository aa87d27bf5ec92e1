"""Right: two tasks whose gradients are projected off each other where they conflict (PCGrad)."""

import torch
from kit import metric, tell
from torch import nn

torch.manual_seed(21)
x = torch.randn(768, 12)
a = torch.sin(x[:, :3]).sum(1)
b = -torch.sin(x[:, 1:4]).sum(1) + x[:, 5]


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(12, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh())
        self.heads = nn.ModuleList(nn.Linear(48, 1) for _ in range(2))

    def forward(self, x):
        h = self.trunk(x)
        return [head(h).squeeze(-1) for head in self.heads]


def flat(grads, params):
    return torch.cat(
        [torch.zeros_like(p).flatten() if g is None else g.flatten() for g, p in zip(grads, params, strict=True)]
    )


model = Two()
params = list(model.parameters())
optimizer = torch.optim.Adam(params, lr=3e-3)
losses = []
for _ in range(50):
    index = torch.randint(640, (64,))
    outs = model(x[index])
    parts = [nn.functional.mse_loss(o, t[index]) for o, t in zip(outs, (a, b), strict=True)]
    grads = [flat(torch.autograd.grad(p, params, retain_graph=True, allow_unused=True), params) for p in parts]
    projected = []
    for i, g in enumerate(grads):
        other = grads[1 - i]
        dot = g @ other
        projected.append(g - dot / (other @ other) * other if dot < 0 else g)
    total = sum(projected)
    optimizer.zero_grad()
    start = 0
    for p in params:
        p.grad = total[start : start + p.numel()].view_as(p).clone()
        start += p.numel()
    optimizer.step()
    losses.append(sum(p.detach() for p in parts))
with torch.no_grad():
    metric("error", sum(nn.functional.mse_loss(o, t[640:]) for o, t in zip(model(x[640:]), (a, b), strict=True)))
tell(model, losses)
