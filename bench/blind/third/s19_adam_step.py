"""A hand-written Adam counts its step once per parameter, not once per step."""

import torch
import torch.nn.functional as F
from torch import nn
from c import FAULT, finish

torch.manual_seed(0)


class MyAdam(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps))
        self.t = 0

    @torch.no_grad()
    def step(self, closure=None):
        if not FAULT:
            self.t += 1
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                if FAULT:
                    self.t += 1  # FAULT: per parameter
                st = self.state[p]
                if not st:
                    st["m"], st["v"] = torch.zeros_like(p), torch.zeros_like(p)
                st["m"].lerp_(p.grad, 1 - b1)
                st["v"].mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                mhat = st["m"] / (1 - b1**self.t)
                vhat = st["v"] / (1 - b2**self.t)
                p.sub_(group["lr"] * mhat / (vhat.sqrt() + group["eps"]))


model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))
opt = MyAdam(model.parameters(), 2e-3)
W = torch.randn(10, 3)
losses = []
for step in range(50):
    x = torch.randn(32, 10)
    loss = F.cross_entropy(model(x), (x @ W).argmax(1))
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
finish(losses, model)
