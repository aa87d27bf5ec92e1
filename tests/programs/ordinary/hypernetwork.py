"""A hypernetwork makes the weights of a target network, which is run with functional_call."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

torch.manual_seed(12)
target = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
for p in target.parameters():
    p.requires_grad_(False)
shapes = {name: p.shape for name, p in target.named_parameters()}


class HyperNet(nn.Module):
    def __init__(self, d_task):
        super().__init__()
        self.trunk = nn.Linear(d_task, 32)
        self.heads = nn.ModuleDict({n.replace(".", "_"): nn.Linear(32, s.numel()) for n, s in shapes.items()})

    def forward(self, task):
        h = torch.relu(self.trunk(task))  # plant: forward
        return {n: 0.3 * self.heads[n.replace(".", "_")](h).view(s) for n, s in shapes.items()}


hyper = HyperNet(4)
optimizer = torch.optim.Adam(hyper.parameters(), lr=3e-3)
tasks = torch.randn(8, 4)
for step in range(8):  # turn
    task = tasks[step % 4]
    x = torch.randn(20, 3)  # plant: data
    y = (x * task[:3]).sum(1, keepdim=True)
    weights = hyper(task)
    pred = functional_call(target, weights, (x,))  # plant: output
    loss = F.mse_loss(pred, y)  # plant: loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step={step} loss={loss.item()}")
