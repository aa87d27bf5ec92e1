"""DQN with a target network that is refreshed now and then."""

import copy

import torch
from kit import FAULT, metric, tell
from torch import nn

torch.manual_seed(2)
STATES, ACTIONS, GAMMA, EVERY = 12, 3, 0.97, 20


class QNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(STATES, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, ACTIONS))

    def forward(self, state):
        return self.net(nn.functional.one_hot(state, STATES).float())


def walk(count):
    """Transitions of a random walk over a ring with one goal."""
    state = torch.randint(STATES, (count,))
    action = torch.randint(ACTIONS, (count,))
    following = (state + action - 1) % STATES
    reward = (following == 0).float() - 0.02
    return state, action, reward, following, following == 0


def refresh(target, online):
    with torch.no_grad():
        for t, p in zip(target.parameters(), online.parameters(), strict=True):
            if FAULT:
                t.data = p.data
            else:
                t.data.copy_(p.data)


online = QNet()
target = copy.deepcopy(online).requires_grad_(False)
optimizer = torch.optim.Adam(online.parameters(), lr=3e-3)
replay = walk(2048)
losses = []
for step in range(80):
    if step and step % EVERY == 0:
        refresh(target, online)
    index = torch.randint(len(replay[0]), (64,))
    state, action, reward, following, done = (v[index] for v in replay)
    q = online(state).gather(1, action[:, None]).squeeze(1)
    with torch.no_grad():
        best = online(following).argmax(1, keepdim=True)
        backed_up = target(following).gather(1, best).squeeze(1)
        aim = reward + GAMMA * backed_up * (~done)
    loss = nn.functional.smooth_l1_loss(q, aim)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(online.parameters(), 10.0)
    optimizer.step()
    losses.append(loss.detach())
with torch.no_grad():
    metric("value", online(torch.arange(STATES)).max(1).values.mean())
tell(online, losses)
