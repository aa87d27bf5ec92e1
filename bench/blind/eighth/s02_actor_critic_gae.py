"""Advantage actor-critic with GAE over parallel environments: walk along a line to its right end."""

import torch
from kit import FAULT, metric, tell
from torch import nn

torch.manual_seed(102)
ENVS, HORIZON, SIZE = 8, 16, 7


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(SIZE, 32), nn.Tanh())
        self.actor = nn.Linear(32, 2)
        self.critic = nn.Linear(32, 1)

    def forward(self, observation):
        h = self.body(observation)
        return self.actor(h), self.critic(h).squeeze(-1)


def observe(position):
    return nn.functional.one_hot(position, SIZE).float()


def gae(reward, value, done, last, gamma=0.97, lam=0.9):
    advantage, running = torch.zeros_like(reward), torch.zeros(ENVS)
    for t in reversed(range(HORIZON)):
        after = last if t == HORIZON - 1 else value[t + 1]
        delta = reward[t] + gamma * after * (1 - done[t]) - value[t]
        running = delta + gamma * lam * (1 - done[t]) * running
        advantage[t] = running
    return advantage


model = Policy()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
position = torch.randint(0, SIZE - 1, (ENVS,))
losses, returns = [], []
for step in range(40):
    store = {k: [] for k in ("observation", "action", "reward", "value", "done")}
    with torch.no_grad():
        for _ in range(HORIZON):
            observation = observe(position)
            logits, value = model(observation)
            action = torch.distributions.Categorical(logits=logits).sample()
            position = (position + 2 * action - 1).clamp(min=0)
            done = position == SIZE - 1
            reward = done.float() - 0.01
            position = torch.where(done, torch.randint(0, SIZE - 2, (ENVS,)), position)
            for k, v in zip(store, (observation, action, reward, value, done.float()), strict=True):
                store[k].append(v)
        last = model(observe(position))[1]
        store = {k: torch.stack(v) for k, v in store.items()}
        advantage = gae(store["reward"], store["value"], store["done"], last)
        target = advantage + store["value"]

    observation = store["observation"].reshape(HORIZON * ENVS, SIZE)
    action = store["action"].reshape(-1)
    if FAULT:
        advantage, target = advantage.T.reshape(-1), target.T.reshape(-1)
    else:
        advantage, target = advantage.reshape(-1), target.reshape(-1)
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    logits, value = model(observation)
    policy = torch.distributions.Categorical(logits=logits)
    loss = -(policy.log_prob(action) * advantage).mean()
    loss = loss + 0.5 * nn.functional.mse_loss(value, target) - 0.01 * policy.entropy().mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    losses.append(loss.detach())
    returns.append(store["reward"].sum() / ENVS)

metric("return", torch.stack(returns[-5:]).mean())
tell(model, losses)
