"""A student learns from a trained teacher at a temperature, and from the labels."""

import torch
from kit import FAULT, metric, tell
from torch import nn
from torch.nn import functional as F

torch.manual_seed(110)
TEMPERATURE, WEIGHT = 3.0, 0.7


def network(width):
    return nn.Sequential(nn.Linear(20, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 6))


def batches(x, y, size=32):
    order = torch.randperm(len(x))
    for i in range(0, len(x), size):
        yield x[order[i : i + size]], y[order[i : i + size]]


def distill(student, teacher):
    soft = (teacher / TEMPERATURE).softmax(dim=-1)
    if FAULT:
        own = (student / TEMPERATURE).softmax(dim=-1)
    else:
        own = (student / TEMPERATURE).log_softmax(dim=-1)
    return F.kl_div(own, soft, reduction="batchmean") * TEMPERATURE**2


x = torch.randn(1024, 20)
y = torch.tanh(x @ torch.randn(20, 12)).matmul(torch.randn(12, 6)).argmax(dim=1)
teacher = network(96)
closed = torch.linalg.lstsq(
    torch.relu(teacher[2](torch.relu(teacher[0](x)))).detach(), F.one_hot(y, 6).float()
).solution
with torch.no_grad():
    teacher[4].weight.copy_(6 * closed.T)
    teacher[4].bias.zero_()
teacher.requires_grad_(False).eval()

student = network(24)
optimizer = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9)
losses = []
for _epoch in range(2):
    for xb, yb in batches(x[:896], y[:896]):
        with torch.no_grad():
            guide = teacher(xb)
        logits = student(xb)
        loss = WEIGHT * distill(logits, guide) + (1 - WEIGHT) * F.cross_entropy(logits, yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())

with torch.no_grad():
    metric("agree", (student(x[896:]).argmax(1) == teacher(x[896:]).argmax(1)).float().mean())
tell(student, losses)
