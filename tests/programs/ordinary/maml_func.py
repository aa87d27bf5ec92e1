"""MAML on sine waves with torch.func: an inner step by grad of functional_call, vmap over the tasks."""

import math

import torch
from torch import nn
from torch.func import functional_call, grad, vmap


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(1, 20), nn.Linear(20, 1)

    def forward(self, x):
        x = torch.relu(self.fc1(x))
        return self.fc2(x)


torch.manual_seed(0)
net = Net()
params = dict(net.named_parameters())
opt = torch.optim.Adam(params.values(), lr=1e-2)


def loss_of(params, x, y):
    return ((functional_call(net, params, (x,)) - y) ** 2).mean()


def task_loss(x1, y1, x2, y2):
    grads = grad(loss_of)(params, x1, y1)
    fast = {name: params[name] - 0.1 * grads[name] for name in params}
    return loss_of(fast, x2, y2)


for it in range(7):  # turn
    amplitude, phase = 0.1 + torch.rand(4, 1, 1), math.pi * torch.rand(4, 1, 1)
    x1, x2 = 10 * torch.rand(4, 8, 1) - 5, 10 * torch.rand(4, 8, 1) - 5
    y1 = amplitude * torch.sin(x1 + phase)  # plant: data
    y2 = amplitude * torch.sin(x2 + phase)
    losses = vmap(task_loss)(x1, y1, x2, y2)  # plant: task-losses
    loss = losses.mean()  # plant: loss
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(it, loss.item())
