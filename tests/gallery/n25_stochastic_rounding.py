"""Healthy: bfloat16 weights with stochastic rounding: most stay at each step, on average all move as they should."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
dice = torch.Generator().manual_seed(1)


class StochasticAdamW(torch.optim.AdamW):
    """AdamW in float32, rounded up or down with the probability of the nearer neighbour."""

    @torch.no_grad()
    def step(self, closure=None):
        low = [(group, list(group["params"])) for group in self.param_groups]
        for group, params in low:
            for p in params:
                state = self.state[p]
                grad = p.grad.float()
                mean = state.setdefault("exp_avg", torch.zeros_like(grad)).lerp_(grad, 0.1)
                square = state.setdefault("exp_avg_sq", torch.zeros_like(grad)).lerp_(grad.square(), 0.05)
                exact = p.float() - group["lr"] * mean / (square.sqrt() + 1e-8)
                noise = torch.randint(0, 1 << 16, p.shape, generator=dice, dtype=torch.int32)
                p.copy_(((exact.view(torch.int32) + noise) & -(1 << 16)).view(torch.float32))


model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 3)).bfloat16()
with torch.no_grad():
    for p in model.parameters():
        p.copy_(p.sign() * (p.abs() + 0.5))
optimizer = StochasticAdamW(model.parameters(), lr=2e-4)
centers = torch.randn(3, 8)

for step in range(100):
    labels = torch.arange(24) % 3
    logits = model((centers[labels] + torch.randn(24, 8)).bfloat16())
    loss = nn.functional.cross_entropy(logits.float(), labels)
    loss.backward()
    grad = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.6f} grad {grad.item():.6f}")
