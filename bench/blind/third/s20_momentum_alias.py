"""A momentum optimizer keeps the gradient tensor itself as its buffer; zero_grad empties it."""

import torch
import torch.nn.functional as F
from torch import nn
from c import FAULT, finish

torch.manual_seed(0)


class SignMomentum(torch.optim.Optimizer):
    def __init__(self, params, lr, beta=0.9):
        super().__init__(params, dict(lr=lr, beta=beta))

    @torch.no_grad()
    def step(self, closure=None):
        for g in self.param_groups:
            for p in g["params"]:
                if p.grad is None:
                    continue
                s = self.state[p]
                if "buf" not in s:
                    s["buf"] = p.grad if FAULT else p.grad.clone()  # FAULT: alias of .grad
                else:
                    s["buf"].mul_(g["beta"]).add_(p.grad, alpha=1 - g["beta"])
                p.add_(s["buf"].sign(), alpha=-g["lr"])


model = nn.Sequential(nn.Conv1d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 10, 4))
opt = SignMomentum(model.parameters(), 1e-3)
losses = []
for step in range(50):
    y = torch.randint(0, 4, (16,))
    x = torch.randn(16, 3, 10) + y[:, None, None] * 0.5
    opt.zero_grad(set_to_none=False)
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    opt.step()
    losses.append(loss.item())
finish(losses, model)
