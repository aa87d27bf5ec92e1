"""PPO with a Gaussian policy on a row of point masses whose force is limited."""

import torch
from kit import FAULT, metric, tell
from torch import nn
from torch.distributions import Normal

torch.manual_seed(1)
ENVS, HORIZON, GAMMA, LAM = 16, 16, 0.95, 0.9


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
        self.critic = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
        self.log_std = nn.Parameter(torch.zeros(1))

    def dist(self, obs):
        return Normal(self.actor(obs), self.log_std.exp())

    def value(self, obs):
        return self.critic(obs).squeeze(-1)


def env_step(state, force):
    place, speed = state.unbind(-1)
    speed = 0.9 * speed + 0.3 * force.clamp(-1, 1).squeeze(-1)
    place = place + 0.3 * speed
    reward = -(place**2) - 0.05 * speed**2
    return torch.stack([place, speed], -1), reward


policy = Policy()
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
state = torch.randn(ENVS, 2)
losses, returns = [], []
for iteration in range(8):
    rows = {k: [] for k in ("obs", "action", "logp", "value", "reward")}
    with torch.no_grad():
        for _ in range(HORIZON):
            dist = policy.dist(state)
            action = dist.sample()
            logp = dist.log_prob(action).sum(-1)
            if FAULT:
                action = action.clamp(-1, 1)
            following, reward = env_step(state, action)
            for key, value in zip(rows, (state, action, logp, policy.value(state), reward)):
                rows[key].append(value)
            state = following
        data = {k: torch.stack(v) for k, v in rows.items()}
        advantage, running, after = torch.zeros(HORIZON, ENVS), torch.zeros(ENVS), policy.value(state)
        for t in reversed(range(HORIZON)):
            delta = data["reward"][t] + GAMMA * after - data["value"][t]
            running = delta + GAMMA * LAM * running
            advantage[t], after = running, data["value"][t]
        data["advantage"], data["target"] = advantage, advantage + data["value"]
        flat = {k: v.flatten(0, 1) for k, v in data.items()}
    returns.append(data["reward"].mean())
    state = torch.randn(ENVS, 2)
    for _ in range(2):
        for index in torch.randperm(ENVS * HORIZON).split(64):
            part = {k: v[index] for k, v in flat.items()}
            logp = policy.dist(part["obs"]).log_prob(part["action"]).sum(-1)
            ratio = (logp - part["logp"]).exp()
            adv = (part["advantage"] - part["advantage"].mean()) / (part["advantage"].std() + 1e-8)
            surrogate = torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
            value_loss = (policy.value(part["obs"]) - part["target"]).pow(2).mean()
            loss = -surrogate + 0.5 * value_loss
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
            optimizer.step()
            losses.append(loss.detach())
metric("reward", torch.stack(returns[-3:]).mean())
tell(policy, losses)
