"""Distillation: kl_div gets the student's probabilities where it wants their logarithm."""

import torch
import torch.nn.functional as F
from torch import nn
from c import FAULT, finish

torch.manual_seed(0)
teacher = nn.Sequential(nn.Linear(12, 64), nn.Tanh(), nn.Linear(64, 5)).requires_grad_(False)
teacher[2].weight.mul_(4)
student = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 5))
opt = torch.optim.AdamW(student.parameters(), 2e-3)
T = 2.0
losses = []
for step in range(50):
    x = torch.randn(32, 12)
    with torch.no_grad():
        tl = teacher(x)
    sl = student(x)
    logp = F.softmax(sl / T, -1) if FAULT else F.log_softmax(sl / T, -1)  # FAULT: not a log
    kd = F.kl_div(logp, F.softmax(tl / T, -1), reduction="batchmean") * T * T
    loss = 0.5 * kd + 0.5 * F.cross_entropy(sl, tl.argmax(1))
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
finish(losses, student)
