# SAC: twin critics in one optimizer, actor, temperature, target by polyak, replay buffer, critics frozen in the actor's pass
import copy, itertools, torch, torch.nn as nn, torch.nn.functional as F
from c import seed, final

seed()


def mlp(i, o):
    return nn.Sequential(nn.Linear(i, 32), nn.ReLU(), nn.Linear(32, o))


q1, q2, pi = mlp(5, 1), mlp(5, 1), mlp(4, 2)
t1, t2 = copy.deepcopy(q1), copy.deepcopy(q2)
for p in itertools.chain(t1.parameters(), t2.parameters()):
    p.requires_grad = False
log_alpha = torch.zeros(1, requires_grad=True)
qp = list(q1.parameters()) + list(q2.parameters())
oq, op, oa = torch.optim.Adam(qp, 3e-4), torch.optim.Adam(pi.parameters(), 3e-4), torch.optim.Adam([log_alpha], 3e-4)
S, A, R, S2 = torch.randn(256, 4), torch.randn(256, 1).tanh(), torch.randn(256, 1), torch.randn(256, 4)


def act(s):
    mu, ls = pi(s).chunk(2, -1)
    d = torch.distributions.Normal(mu, ls.clamp(-5, 2).exp())
    u = d.rsample()
    a = u.tanh()
    return a, (d.log_prob(u) - torch.log(1 - a**2 + 1e-6)).sum(-1, keepdim=True)


for step in range(30):
    i = torch.randint(0, 256, (32,))
    s, a, r, s2 = S[i], A[i], R[i], S2[i]
    with torch.no_grad():
        a2, lp2 = act(s2)
        x2 = torch.cat([s2, a2], 1)
        y = r + 0.99 * (torch.min(t1(x2), t2(x2)) - log_alpha.exp() * lp2)
    x = torch.cat([s, a], 1)
    lq = F.mse_loss(q1(x), y) + F.mse_loss(q2(x), y)
    oq.zero_grad()
    lq.backward()
    oq.step()
    for p in qp:
        p.requires_grad = False
    an, lp = act(s)
    xn = torch.cat([s, an], 1)
    lpi = (log_alpha.exp().detach() * lp - torch.min(q1(xn), q2(xn))).mean()
    op.zero_grad()
    lpi.backward()
    op.step()
    for p in qp:
        p.requires_grad = True
    la = -(log_alpha * (lp.detach() - 1.0)).mean()
    oa.zero_grad()
    la.backward()
    oa.step()
    with torch.no_grad():
        for t, q in ((t1, q1), (t2, q2)):
            for a_, b_ in zip(t.parameters(), q.parameters()):
                a_.mul_(0.995).add_(0.005 * b_)
final(lq, q1, q2, pi, t1, t2)
