"""An AdamW of one's own, with decoupled decay and a warm-up."""

import torch
from kit import FAULT, metric, tell
from torch import nn

torch.manual_seed(13)
x = torch.randn(1024, 12)
y = torch.cos(x[:, :3]).prod(1, keepdim=True) + 0.3 * x[:, 3:5].sum(1, keepdim=True)


class OwnAdamW(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))
        self.steps = 0

    @torch.no_grad()
    def step(self, closure=None):
        if not FAULT:
            self.steps += 1
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                if FAULT:
                    self.steps += 1
                state = self.state[p]
                if not state:
                    state["exp_avg"] = torch.zeros_like(p)
                    state["exp_avg_sq"] = torch.zeros_like(p)
                exp_avg, exp_avg_sq = state["exp_avg"], state["exp_avg_sq"]
                exp_avg.mul_(beta1).add_(p.grad, alpha=1 - beta1)
                exp_avg_sq.mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                corrected = exp_avg / (1 - beta1**self.steps)
                scale = (exp_avg_sq / (1 - beta2**self.steps)).sqrt().add_(group["eps"])
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.addcdiv_(corrected, scale, value=-group["lr"])


model = nn.Sequential(nn.Linear(12, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1))
optimizer = OwnAdamW(model.parameters(), lr=3e-3)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 5))
losses = []
for _ in range(60):
    index = torch.randint(896, (64,))
    loss = nn.functional.mse_loss(model(x[index]), y[index])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    losses.append(loss.detach())
with torch.no_grad():
    metric("error", nn.functional.mse_loss(model(x[896:]), y[896:]))
tell(model, losses)
