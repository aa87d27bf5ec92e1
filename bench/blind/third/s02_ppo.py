"""PPO on a bandit; the old log-probabilities are recomputed with their graph."""

import torch
from torch import nn
from torch.distributions import Categorical
from c import FAULT, finish

torch.manual_seed(0)


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 3))
        self.critic = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, obs):
        return Categorical(logits=self.actor(obs)), self.critic(obs).squeeze(-1)


net = ActorCritic()
opt = torch.optim.Adam(net.parameters(), 3e-3)
W = torch.randn(4, 3)
losses = []
for it in range(12):
    obs = torch.randn(64, 4)
    with torch.no_grad():
        dist, value = net(obs)
        act = dist.sample()
        old_logp = dist.log_prob(act)
    rew = (obs @ W).gather(1, act[:, None]).squeeze(1)
    adv = rew - value
    adv = (adv - adv.mean()) / (adv.std() + 1e-8)
    for epoch in range(4):
        dist, v = net(obs)
        logp = dist.log_prob(act)
        if FAULT:
            old_logp = net(obs)[0].log_prob(act)  # FAULT: has a graph, cancels logp's gradient
        ratio = (logp - old_logp).exp()
        pg = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
        loss = pg + 0.5 * (v - rew).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
finish(losses, net)
