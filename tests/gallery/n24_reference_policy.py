"""Healthy: two bfloat16 copies of a model: a reference that nobody writes to, and a target that is set now and then."""

import copy

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

policy = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 4))
reference = copy.deepcopy(policy).bfloat16().requires_grad_(False)
target = copy.deepcopy(policy).bfloat16().requires_grad_(False)
optimizer = torch.optim.AdamW(policy.parameters(), lr=2e-2)

for step in range(120):
    x = torch.randn(32, 8)
    with torch.no_grad():
        old, goal = reference(x.bfloat16()).float(), target(x.bfloat16()).float()
    loss = nn.functional.mse_loss(policy(x), x[:, :4]) + 1e-3 * (policy(x) - old).square().mean()
    loss = loss + 1e-3 * (policy(x) - goal).square().mean()
    loss.backward()
    grad = torch.nn.utils.get_total_norm([p.grad for p in policy.parameters()])
    optimizer.step()
    optimizer.zero_grad()
    if step % 10 == 9:
        target.load_state_dict(policy.state_dict())
    print(f"step {step} loss {loss.item():.6f} grad {grad.item():.6f}")
