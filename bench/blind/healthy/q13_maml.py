# MAML of second order by functional_call; batch norm uses the batch in adaptation and in tests, which are in training mode
import torch, torch.nn as nn, torch.nn.functional as F
from torch.func import functional_call
from c import seed, final

seed()
m = nn.Sequential(nn.Linear(1, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 1))
o = torch.optim.Adam(m.parameters(), 1e-3)


def task():
    a, b = torch.rand(()) * 4 + 0.1, torch.rand(()) * 3
    return lambda x: a * torch.sin(x + b)


def adapt(f, graph):
    w = dict(m.named_parameters())
    x = torch.rand(10, 1) * 10 - 5
    for _ in range(2):
        g = torch.autograd.grad(F.mse_loss(functional_call(m, w, (x,)), f(x)), list(w.values()), create_graph=graph)
        w = {k: v - 0.01 * d for (k, v), d in zip(w.items(), g)}
    x = torch.rand(10, 1) * 10 - 5
    return F.mse_loss(functional_call(m, w, (x,)), f(x))


for step in range(60):
    loss = sum(adapt(task(), True) for _ in range(4)) / 4
    o.zero_grad()
    loss.backward()
    o.step()
    if step % 15 == 14:
        tests = [adapt(task(), False).item() for _ in range(10)]
final(loss, m)
