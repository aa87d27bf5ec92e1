# actor-critic: the advantage isn't detached, so the policy loss also trains the critic
from mini import *

seed()
body, pi, vf = nn.Linear(16, 64), nn.Linear(64, 5), nn.Linear(64, 1)
m = nn.ModuleList([body, pi, vf])
o = torch.optim.Adam(m.parameters(), 3e-3)
X, Y = blobs(4096)
for step in range(60):
    x, y = X[step * 32 : step * 32 + 32], Y[step * 32 : step * 32 + 32]
    h = torch.tanh(body(x))
    d = torch.distributions.Categorical(logits=pi(h))
    a = d.sample()
    R = (a == y).float()
    v = vf(h).squeeze(-1)
    adv = R - v
    if not FAULT:
        adv = adv.detach()
    loss = -(d.log_prob(a) * adv).mean() + 0.5 * F.mse_loss(v, R) - 0.01 * d.entropy().mean()
    o.zero_grad()
    loss.backward()
    o.step()
done(m, loss)
