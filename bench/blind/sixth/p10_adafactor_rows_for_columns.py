"""Adafactor of our own: the second moment of a matrix is kept as means of its rows and of its columns."""

import torch
import torch.nn.functional as F
from kit import FAULT, metric, tell
from torch import nn


class Adafactor(torch.optim.Optimizer):
    def __init__(self, params, lr, decay=0.95):
        super().__init__(params, {"lr": lr, "decay": decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                squared = p.grad**2 + 1e-30
                state["step"] = state.get("step", 0) + 1
                correction = 1 - group["decay"] ** state["step"]
                if p.dim() == 2:
                    rows = state.setdefault("rows", torch.zeros(p.shape[0]))
                    columns = state.setdefault("columns", torch.zeros(p.shape[1]))
                    rows.lerp_(squared.mean(dim=1), 1 - group["decay"])
                    columns.lerp_(squared.mean(dim=0), 1 - group["decay"])
                    if FAULT:
                        second = rows[None, :] * columns[:, None] / rows.mean()
                    else:
                        second = rows[:, None] * columns[None, :] / rows.mean()
                else:
                    second = state.setdefault("second", torch.zeros_like(p))
                    second.lerp_(squared, 1 - group["decay"])
                update = p.grad / (second / correction).clamp_(min=1e-16).sqrt()
                update /= update.square().mean().sqrt().clamp_(min=1.0)
                p.sub_(update, alpha=group["lr"])


torch.manual_seed(0)
x = torch.randn(768, 48) * torch.logspace(0, -2, 48)
y = ((x * torch.logspace(0, 2, 48)) @ torch.randn(48, 4)).argmax(dim=1)
model = nn.Sequential(nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 4))
body, head = model[:-1], model[-1]
optimizers = [Adafactor(body.parameters(), lr=3e-3), torch.optim.Adam(head.parameters(), lr=3e-3)]
losses = []
for step in range(120):
    at = torch.randint(0, 640, (32,))
    loss = F.cross_entropy(model(x[at]), y[at])
    model.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    losses.append(loss.item())
with torch.no_grad():
    metric("accuracy", (model(x[640:]).argmax(1) == y[640:]).float().mean())
tell(model, losses)
