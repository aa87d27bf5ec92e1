"""PPO by hand: values (N, 1) against returns (N,), so the value loss is over N x N pairs."""

import warnings

import torch
from kit import FAULT, tell
from torch import nn

warnings.filterwarnings("ignore")
torch.manual_seed(29)


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
        self.actor, self.critic = nn.Linear(32, 2), nn.Linear(32, 1)

    def forward(self, seen):
        h = self.body(seen)
        return torch.distributions.Categorical(logits=self.actor(h)), self.critic(h)


def rollout(agent, count=8, steps=16):
    """A cart on a line that is paid for being near 0."""
    state = torch.randn(count, 4)
    kept = []
    for _ in range(steps):
        with torch.no_grad():
            choice, value = agent(state)
            action = choice.sample()
        push = (action * 2 - 1).float()
        nxt = state.clone()
        nxt[:, 1] = 0.9 * state[:, 1] + 0.3 * push
        nxt[:, 0] = state[:, 0] + 0.3 * nxt[:, 1]
        kept.append((state, action, choice.log_prob(action), value[:, 0], 1 - nxt[:, 0].abs()))
        state = nxt
    with torch.no_grad():
        after = agent(state)[1][:, 0]
    out, gain = [], torch.zeros(count)
    for state, action, logp, value, reward in reversed(kept):
        gain = reward + 0.99 * after - value + 0.95 * 0.99 * gain
        out.append((state, action, logp, gain, gain + value))
        after = value
    return [torch.cat(c) for c in zip(*out, strict=True)]


agent = Agent()
optimizer = torch.optim.Adam(agent.parameters(), lr=1e-3, eps=1e-5)
losses = []
for _ in range(10):
    states, actions, logps, gains, returns = rollout(agent)
    for _ in range(2):
        for rows in torch.randperm(len(states)).split(64):
            choice, value = agent(states[rows])
            ratio = (choice.log_prob(actions[rows]) - logps[rows]).exp()
            gain = (gains[rows] - gains[rows].mean()) / (gains[rows].std() + 1e-8)
            policy = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
            if not FAULT:
                value = value[:, 0]
            worth = nn.functional.mse_loss(value, returns[rows])
            loss = policy + 0.5 * worth - 0.01 * choice.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
            losses.append(loss.detach())
tell(agent, losses)
