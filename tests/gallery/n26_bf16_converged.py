"""Healthy: bfloat16 weights that moved until there was nothing left to learn, and then rightly stand still."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Linear(8, 1, bias=False).bfloat16()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
x = torch.randn(64, 8).bfloat16()
y = x.float() @ torch.linspace(-1, 1, 8).bfloat16().float()[:, None]

for step in range(100):
    loss = nn.functional.mse_loss(model(x).float(), y)
    loss.backward()
    grad = model.weight.grad.float().norm()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.6f} grad {grad.item():.6f}")
