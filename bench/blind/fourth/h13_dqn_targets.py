"""Healthy: double DQN: targets without gradient, target network copied each 10 steps, prioritised weights, warm-up without steps."""

import copy

import torch
from kit import tell
from torch import nn

torch.manual_seed(113)
net = nn.Sequential(nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 3))
target = copy.deepcopy(net).eval().requires_grad_(False)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
kept, priority, losses = [], [], []
state = torch.randn(4)
for frame in range(400):
    with torch.no_grad():
        action = torch.randint(0, 3, ()) if torch.rand(()) < max(0.1, 1 - frame / 200) else net(state).argmax()
    nxt = 0.9 * state + 0.3 * torch.nn.functional.pad((action - 1.0).view(1), (0, 3)).roll(frame % 4)
    reward = 1 - nxt.abs().mean()
    done = float(nxt.abs().max() > 3)
    kept.append((state, action, reward, nxt, torch.tensor(done)))
    priority.append(max(priority, default=1.0))
    state = torch.randn(4) if done else nxt
    if frame < 64 or frame % 8:
        continue
    chance = torch.tensor(priority) ** 0.6
    rows = torch.multinomial(chance, 32)
    weight = (len(kept) * chance[rows] / chance.sum()) ** -0.4
    s, a, r, n, d = (torch.stack(c) for c in zip(*[kept[i] for i in rows.tolist()], strict=True))
    with torch.no_grad():
        best = net(n).argmax(1, keepdim=True)
        goal = r + 0.97 * (1 - d) * target(n).gather(1, best)[:, 0]
    error = net(s).gather(1, a[:, None])[:, 0] - goal
    loss = (
        weight / weight.max() * nn.functional.smooth_l1_loss(error, torch.zeros_like(error), reduction="none")
    ).mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(net.parameters(), 1.0)
    optimizer.step()
    for i, e in zip(rows.tolist(), error.tolist(), strict=True):
        priority[i] = abs(e) + 1e-3
    losses.append(loss.detach())
    if len(losses) % 10 == 0:
        target.load_state_dict(net.state_dict())
tell(net, losses)
