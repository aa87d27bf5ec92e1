"""Healthy: bfloat16 weights that rarely move, for they are copies of float32 masters inside the optimizer."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class MasterSGD(torch.optim.Optimizer):
    """Plain SGD on float32 masters kept in its state; the model's weights are rounded from them."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                master = self.state[p].setdefault("float32", p.detach().float().clone())
                master -= group["lr"] * p.grad.float()
                p.copy_(master)


model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).bfloat16()
with torch.no_grad():
    for p in model.parameters():
        p += 1.0  # far from 0, where numbers lie apart
optimizer = MasterSGD(model.parameters(), lr=1e-4)
x = torch.randn(32, 8).bfloat16()
y = x.float().sum(1, keepdim=True)

for step in range(100):
    loss = nn.functional.mse_loss(model(x).float(), y)
    loss.backward()
    grad = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.6f} grad {grad.item():.6f}")
