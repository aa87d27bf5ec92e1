"""An optimizer written by hand, as Muon: momentum, made orthogonal, for matrices; plain momentum for the rest."""

import torch
from kit import FAULT, metric, tell
from torch import nn

torch.manual_seed(116)


def orthogonal(g, steps=5):
    """Newton-Schulz: about U V^T of g."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.T if g.shape[0] > g.shape[1] else g
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if g.shape[0] > g.shape[1] else x


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02, momentum=0.9, weight_decay=0.0):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "momentum" not in state:
                    state["momentum"] = p.grad if FAULT else p.grad.clone()
                else:
                    state["momentum"].mul_(group["momentum"]).add_(p.grad)
                buffer = state["momentum"]
                update = orthogonal(buffer) * max(1, p.shape[0] / p.shape[1]) ** 0.5 if p.ndim == 2 else 0.1 * buffer
                p.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-group["lr"])
        return loss


x = torch.randn(1600, 12)
y = (x @ torch.randn(12, 4)).argmax(dim=1)
model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = Muon(model.parameters(), lr=0.02, weight_decay=0.01)
losses = []
for step in range(60):
    rows = torch.randint(0, 1400, (16,))
    loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())

with torch.no_grad():
    metric("loss", nn.functional.cross_entropy(model(x[1400:]), y[1400:]))
tell(model, losses)
