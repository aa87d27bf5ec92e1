"""Deterministic policy gradient: an actor and a critic, each with an optimizer and a target (after DDPG)."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1, self.l2 = nn.Linear(3, 24), nn.Linear(24, 1)

    def forward(self, state):
        a = F.relu(self.l1(state))  # plant: actor
        return torch.tanh(self.l2(a))


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1, self.l2 = nn.Linear(4, 24), nn.Linear(24, 1)

    def forward(self, state, action):
        q = F.relu(self.l1(torch.cat([state, action], 1)))  # plant: critic
        return self.l2(q)


torch.manual_seed(4)
actor, critic = Actor(), Critic()
actor_target, critic_target = copy.deepcopy(actor), copy.deepcopy(critic)
actor_optimizer = torch.optim.Adam(actor.parameters(), lr=1e-3)
critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-2)

for it in range(8):  # turn
    state = torch.randn(32, 3)  # plant: data
    action = actor(state).detach() + 0.1 * torch.randn(32, 1)
    next_state = 0.9 * state + 0.1 * action
    reward = -(next_state**2).sum(1, keepdim=True)
    with torch.no_grad():
        target_Q = reward + 0.9 * critic_target(next_state, actor_target(next_state))
    critic_loss = F.mse_loss(critic(state, action), target_Q)  # plant: critic-loss
    critic_optimizer.zero_grad()
    critic_loss.backward()
    critic_optimizer.step()
    actor_loss = -critic(state, actor(state)).mean()
    actor_optimizer.zero_grad()
    actor_loss.backward()
    actor_optimizer.step()
    for net, target in ((critic, critic_target), (actor, actor_target)):
        for p, t in zip(net.parameters(), target.parameters(), strict=True):
            t.data.copy_(0.005 * p.data + 0.995 * t.data)
    print("critic", critic_loss.item(), "actor", actor_loss.item())
