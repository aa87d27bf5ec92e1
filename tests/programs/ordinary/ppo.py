"""PPO-like: a rollout without gradients, then epochs over its minibatches, in the manner of CleanRL."""

import torch
import torch.nn as nn
from torch.distributions.categorical import Categorical


def layer_init(layer, std=1.4):
    nn.init.orthogonal_(layer.weight, std)
    nn.init.constant_(layer.bias, 0.0)
    return layer


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(layer_init(nn.Linear(4, 16)), nn.Tanh(), layer_init(nn.Linear(16, 1)))
        self.actor = nn.Sequential(layer_init(nn.Linear(4, 16)), nn.Tanh(), layer_init(nn.Linear(16, 3), 0.01))

    def get_action_and_value(self, x, action=None):
        logits = self.actor(x)  # plant: actor
        probs = Categorical(logits=logits, validate_args=False)
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


torch.manual_seed(1)
agent = Agent()
optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-3, eps=1e-5)
for update in range(2):
    with torch.no_grad():
        obs = torch.randn(32, 4)
        actions, logprobs, _, values = agent.get_action_and_value(obs)
        rewards = (actions == obs[:, :3].argmax(1)).float()
        returns = rewards.flip(0).cumsum(0).flip(0) / 10
        advantages = returns - values.flatten()
    for _epoch in range(2):
        for mb in torch.randperm(32).split(16):  # turn
            mb_obs = obs[mb] / 2.0  # plant: data
            _, newlogprob, entropy, newvalue = agent.get_action_and_value(mb_obs, actions[mb])
            ratio = (newlogprob - logprobs[mb]).exp()  # plant: ratio
            adv = advantages[mb]
            adv = (adv - adv.mean()) / (adv.std() + 1e-8)
            pg_loss = torch.max(-adv * ratio, -adv * torch.clamp(ratio, 0.8, 1.2)).mean()
            v_loss = 0.5 * ((newvalue.flatten() - returns[mb]) ** 2).mean()  # plant: value-loss
            loss = pg_loss - 0.01 * entropy.mean() + 0.5 * v_loss
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
            print("update", update, "loss", loss.item(), "value", v_loss.item())
