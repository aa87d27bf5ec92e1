"""A hand-written AdamW."""

import torch
import torch.nn.functional as F
from kit import FAULT, tell
from torch import nn


class MyAdamW(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"] = 0
                    state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
                state["step"] += 1
                m, v = state["exp_avg"], state["exp_avg_sq"]
                m.mul_(beta1).add_(p.grad, alpha=1 - beta1)
                v.mul_(beta2).addcmul_(p.grad, p.grad, value=(1 - beta1) if FAULT else (1 - beta2))
                m_hat = m / (1 - beta1 ** state["step"])
                v_hat = v / (1 - beta2 ** state["step"])
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.addcdiv_(m_hat, v_hat.sqrt() + group["eps"], value=-group["lr"])


torch.manual_seed(0)
x = torch.randn(512, 16)
y = torch.sin(x[:, :4]).sum(dim=1, keepdim=True)
model = nn.Sequential(nn.Linear(16, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
optimizer = MyAdamW(model.parameters(), lr=3e-3)
losses = []
for step in range(60):
    at = torch.randint(0, len(x), (32,))
    loss = F.mse_loss(model(x[at]), y[at])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
tell(model, losses)
