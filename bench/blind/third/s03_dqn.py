"""DQN; the target has one more dimension than the chosen Q-values."""

import copy

import torch
from torch import nn
from c import FAULT, finish

torch.manual_seed(0)
q = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 4))
target = copy.deepcopy(q).requires_grad_(False)
opt = torch.optim.AdamW(q.parameters(), 1e-3)
buf_s = torch.randn(512, 6)
buf_a = torch.randint(0, 4, (512, 1))
buf_s2 = buf_s + 0.1 * torch.randn(512, 6)
buf_r = buf_s.gather(1, buf_a)
buf_d = (torch.rand(512, 1) < 0.1).float()


def td_loss(idx):
    qsa = q(buf_s[idx]).gather(1, buf_a[idx])
    if FAULT:
        qsa = qsa.squeeze(1)
    with torch.no_grad():
        best = target(buf_s2[idx]).max(1, keepdim=True).values
        y = buf_r[idx] + 0.95 * (1 - buf_d[idx]) * best
    err = qsa - y  # FAULT: (B,) - (B,1) broadcasts to (B,B)
    return torch.where(err.abs() < 1, 0.5 * err**2, err.abs() - 0.5).mean()


losses = []
for step in range(50):
    loss = td_loss(torch.randint(0, 512, (32,)))
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(q.parameters(), 10.0)
    opt.step()
    if step % 10 == 9:
        target.load_state_dict(q.state_dict())
    losses.append(loss.item())
finish(losses, q)
