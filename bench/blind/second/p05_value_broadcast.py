# actor-critic: (B, 1) values minus (B,) returns
import torch, torch.nn as nn
from c import FAULT, seed, final

seed()
body = nn.Sequential(nn.Linear(4, 64), nn.Tanh())
pi = nn.Linear(64, 2)
v = nn.Linear(64, 1)
model = nn.ModuleDict({"body": body, "pi": pi, "v": v})
opt = torch.optim.Adam(model.parameters(), 3e-3)
g = torch.Generator().manual_seed(1)
for step in range(40):
    obs = torch.randn(64, 4, generator=g)
    h = body(obs)
    dist = torch.distributions.Categorical(logits=pi(h))
    act = torch.multinomial(dist.probs.detach(), 1, generator=g).squeeze(1)
    returns = obs[:, 0] * (2 * act - 1) + obs[:, 1]
    values = v(h) if FAULT else v(h).squeeze(-1)
    advantage = (returns - values.detach().squeeze(-1)) if not FAULT else (returns - values.squeeze(-1).detach())
    policy_loss = -(dist.log_prob(act) * advantage).mean()
    value_loss = (returns - values).pow(2).mean()
    loss = policy_loss + 0.5 * value_loss - 0.01 * dist.entropy().mean()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    opt.step()
    print(step, loss.item())
final(loss, model)
