# actor-critic with a shared encoder: both optimizers own it
import itertools, torch, torch.nn as nn
from c import FAULT, seed, final

seed()
enc = nn.Sequential(nn.Linear(12, 64), nn.ReLU())
actor = nn.Linear(64, 3)
critic = nn.Linear(64, 1)
oa = torch.optim.Adam(itertools.chain(enc.parameters(), actor.parameters()), 2e-3)
oc = torch.optim.Adam(itertools.chain(enc.parameters(), critic.parameters()) if FAULT else critic.parameters(), 2e-3)
g = torch.Generator().manual_seed(1)
for step in range(30):
    x = torch.randn(64, 12, generator=g)
    h = enc(x)
    logp = actor(h).log_softmax(-1)
    a = torch.multinomial(logp.detach().exp(), 1, generator=g)
    r = x[:, :3].gather(1, a)
    v = critic(h)
    loss = -(logp.gather(1, a) * (r - v.detach())).mean() + 0.5 * ((v - r) ** 2).mean()
    oa.zero_grad()
    oc.zero_grad()
    loss.backward()
    oa.step()
    oc.step()
    print(step, loss.item())
final(loss, nn.ModuleList([enc, actor, critic]))
