"""MAML on sines: second-order inner steps while training, a meta-test with the plain inner loop now and then."""

import copy
import math

import torch
from kit import FAULT, metric, tell
from torch import nn
from torch.func import functional_call

torch.manual_seed(109)


class Net(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(1, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
        )

    def forward(self, x):
        return self.net(x)


def task(g):
    amplitude = 0.5 + 2 * torch.rand(1, generator=g)
    phase = math.pi * torch.rand(1, generator=g)
    x = 6 * torch.rand(20, 1, generator=g) - 3
    y = amplitude * torch.sin(x + phase)
    return (x[:10], y[:10]), (x[10:], y[10:])


def adapt(model, support, lr=0.05, steps=2):
    fast = dict(model.named_parameters())
    for _ in range(steps):
        loss = nn.functional.mse_loss(functional_call(model, fast, (support[0],)), support[1])
        grads = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
        fast = {k: p - lr * d for (k, p), d in zip(fast.items(), grads, strict=True)}
    return fast


def meta_test(model, tasks, lr=0.05, steps=5):
    """How well a learner does on tasks it has not met, each from the meta-learned start."""
    total = 0.0
    for support, query in tasks:
        learner = copy.copy(model) if FAULT else copy.deepcopy(model)
        for _ in range(steps):
            loss = nn.functional.mse_loss(learner(support[0]), support[1])
            grads = torch.autograd.grad(loss, list(learner.parameters()))
            with torch.no_grad():
                for p, d in zip(learner.parameters(), grads, strict=True):
                    p.sub_(lr * d)
        with torch.no_grad():
            total += float(nn.functional.mse_loss(learner(query[0]), query[1]))
    return total / len(tasks)


g = torch.Generator().manual_seed(9)
unseen = [task(g) for _ in range(4)]
model = Net()
meta = torch.optim.Adam(model.parameters(), lr=3e-3)
losses, scores = [], []
for step in range(45):
    loss = 0.0
    for _ in range(4):
        support, query = task(g)
        loss = loss + nn.functional.mse_loss(functional_call(model, adapt(model, support), (query[0],)), query[1]) / 4
    meta.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 10.0)
    meta.step()
    losses.append(loss.detach())
    if step % 15 == 14:
        scores.append(meta_test(model, unseen))

metric("meta_test", scores[-1])
tell(model, losses)
