"""Right: a deep equilibrium layer; the fixed point is found without a graph, its gradient is solved for in a hook."""

import torch
import torch.nn.functional as F
from kit import metric, tell
from torch import nn


class Equilibrium(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width, bias=False)
        self.outer = nn.Linear(width, width)
        nn.init.orthogonal_(self.inner.weight, gain=0.5)

    def f(self, z, x):
        return torch.tanh(self.inner(z) + self.outer(x))

    def forward(self, x):
        with torch.no_grad():
            z = torch.zeros_like(x)
            for _ in range(12):
                z = self.f(z, x)
        z = self.f(z, x)
        if not torch.is_grad_enabled():
            return z
        z0 = z.detach().requires_grad_()
        f0 = self.f(z0, x.detach())

        def solve(grad):
            g = grad
            for _ in range(12):
                g = grad + torch.autograd.grad(f0, z0, g, retain_graph=True)[0]
            return g

        z.register_hook(solve)
        return z


torch.manual_seed(0)
x = torch.randn(640, 16)
y = (x @ torch.randn(16, 4)).argmax(dim=1)
model = nn.Sequential(nn.Linear(16, 24), Equilibrium(24), nn.Linear(24, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
losses = []
for step in range(80):
    at = torch.randint(0, 512, (32,))
    loss = F.cross_entropy(model(x[at]), y[at])
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    losses.append(loss.item())
metric("loss", F.cross_entropy(model(x[512:]), y[512:]))
tell(model, losses)
