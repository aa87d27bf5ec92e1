"""DQN with a replay memory and a soft-updated target network, after the PyTorch tutorial."""

import random
from collections import deque

import torch
import torch.nn as nn
import torch.nn.functional as F

random.seed(0)
torch.manual_seed(0)


class DQN(nn.Module):
    def __init__(self, n_obs, n_actions):
        super().__init__()
        self.layer1 = nn.Linear(n_obs, 32)
        self.layer2 = nn.Linear(32, n_actions)

    def forward(self, x):
        x = F.relu(self.layer1(x))  # plant: forward
        return self.layer2(x)


policy_net, target_net = DQN(3, 2), DQN(3, 2)
target_net.load_state_dict(policy_net.state_dict())
optimizer = torch.optim.AdamW(policy_net.parameters(), lr=1e-3, amsgrad=True)
memory = deque([], maxlen=200)


def optimize_model():  # turn
    batch = random.sample(memory, 16)
    state, action, reward, next_state = (torch.stack(t) for t in zip(*batch, strict=True))
    state = state * 0.5  # plant: data
    q = policy_net(state).gather(1, action)
    with torch.no_grad():
        next_q = target_net(next_state).max(1).values
        expected = reward + 0.9 * next_q  # plant: target
    loss = F.smooth_l1_loss(q, expected.unsqueeze(1))  # plant: loss
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_value_(policy_net.parameters(), 100)
    optimizer.step()
    return loss


state = torch.randn(3)
for t in range(24):
    with torch.no_grad():
        greedy = policy_net(state).argmax().view(1)
    action = greedy if random.random() > 0.3 else torch.randint(2, (1,))
    next_state = 0.8 * state + 0.3 * (action.float() - 0.5) + 0.05 * torch.randn(3)
    memory.append((state, action, -next_state.abs().sum(), next_state))
    state = next_state
    if len(memory) < 16:
        continue
    print(t, optimize_model().item())
    for target, source in zip(target_net.parameters(), policy_net.parameters(), strict=True):
        target.data.copy_(0.05 * source.data + 0.95 * target.data)
