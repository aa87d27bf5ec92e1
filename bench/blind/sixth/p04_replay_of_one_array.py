"""DQN with a replay buffer on a small environment of our own: keep a cart near the middle."""

import random
from collections import deque

import numpy as np
import torch
import torch.nn.functional as F
from kit import FAULT, metric, tell
from torch import nn


class Cart:
    def __init__(self):
        self.state = np.zeros(2, dtype=np.float32)
        self.random = np.random.default_rng(0)

    def reset(self):
        self.state[:] = self.random.uniform(-1, 1, 2)
        self.t = 0
        return self.state

    def step(self, action):
        self.state[1] += 0.2 * (2 * action - 1)
        self.state[0] += 0.2 * self.state[1]
        self.t += 1
        return self.state, 1.0 - min(2.0, abs(float(self.state[0]))), self.t == 25


def as_tensor(state):
    return torch.from_numpy(state) if FAULT else torch.from_numpy(state.copy())


torch.manual_seed(0)
random.seed(0)
env = Cart()
model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))
target = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))
target.load_state_dict(model.state_dict())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
replay = deque(maxlen=2000)
losses = []
state = as_tensor(env.reset())
for step in range(1500):
    with torch.no_grad():
        action = random.randrange(2) if random.random() < 0.2 else int(model(state).argmax())
    after, reward, done = env.step(action)
    after = as_tensor(after)
    replay.append((state, action, reward, after, float(done)))
    state = as_tensor(env.reset()) if done else after
    if step >= 100 and step % 3 == 0:
        states, actions, rewards, afters, dones = zip(*random.sample(replay, 32), strict=True)
        states, afters = torch.stack(states), torch.stack(afters)
        rewards, dones = torch.tensor(rewards), torch.tensor(dones)
        with torch.no_grad():
            goal = rewards + 0.9 * (1 - dones) * target(afters).max(dim=1).values
        value = model(states).gather(1, torch.tensor(actions)[:, None])[:, 0]
        loss = F.smooth_l1_loss(value, goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if step % 30 == 0:
        target.load_state_dict(model.state_dict())
total = 0.0
for _ in range(8):
    state, done = env.reset(), False
    while not done:
        with torch.no_grad():
            state, reward, done = env.step(int(model(torch.from_numpy(state)).argmax()))
        total += reward
metric("return", total / 8)
tell(model, losses)
