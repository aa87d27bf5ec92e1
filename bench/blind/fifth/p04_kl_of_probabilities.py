"""Distillation: a small student learns from labels and from a teacher that was trained before."""

import torch
import torch.nn.functional as F
from kit import FAULT, tell
from torch import nn

T = 2.0


def soft_loss(student, teacher):
    target = F.softmax(teacher / T, dim=-1)
    if FAULT:
        return F.kl_div(F.softmax(student / T, dim=-1), target, reduction="batchmean") * T * T
    return F.kl_div(F.log_softmax(student / T, dim=-1), target, reduction="batchmean") * T * T


torch.manual_seed(0)
x = torch.randn(512, 16)
y = (x @ torch.randn(16, 5)).argmax(dim=1)
teacher = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 5))
warm = torch.optim.Adam(teacher.parameters(), lr=1e-2)
for _ in range(30):
    warm.zero_grad()
    F.cross_entropy(teacher(x), y).backward()
    warm.step()
teacher.eval().requires_grad_(False)

student = nn.Sequential(nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 5))
optimizer = torch.optim.Adam(student.parameters(), lr=5e-3)
losses = []
for step in range(50):
    at = torch.randint(0, len(x), (32,))
    with torch.no_grad():
        said = teacher(x[at])
    logits = student(x[at])
    loss = 0.3 * F.cross_entropy(logits, y[at]) + 0.7 * soft_loss(logits, said)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
tell(student, losses)
