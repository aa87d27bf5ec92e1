"""MAML by hand: autograd.grad with create_graph, fast weights used with F.linear."""

import torch
import torch.nn.functional as F

torch.manual_seed(8)
weights = [
    (torch.randn(16, 1) * 0.5).requires_grad_(),
    torch.zeros(16, requires_grad=True),
    (torch.randn(1, 16) * 0.3).requires_grad_(),
    torch.zeros(1, requires_grad=True),
]
meta_opt = torch.optim.SGD(weights, lr=0.05)


def net(x, w):
    hidden = torch.tanh(F.linear(x, w[0], w[1]))  # plant: net
    return F.linear(hidden, w[2], w[3])


for step in range(6):  # turn
    meta_loss = 0.0
    for _task in range(3):
        slope = torch.randn(1)
        x = torch.randn(10, 1)
        y = slope * x + 0.1  # plant: data
        inner = F.mse_loss(net(x, weights), y)  # plant: inner-loss
        grads = torch.autograd.grad(inner, weights, create_graph=True)
        fast = [w - 0.1 * g for w, g in zip(weights, grads, strict=True)]
        x2 = torch.randn(10, 1)
        outer = F.mse_loss(net(x2, fast), slope * x2 + 0.1)  # plant: outer-loss
        meta_loss = meta_loss + outer / 3
    meta_opt.zero_grad()
    meta_loss.backward()
    meta_opt.step()
    print("meta loss", meta_loss.item())
