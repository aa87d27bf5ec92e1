# StyleGAN's ways: minibatch deviation in the critic, R1 every 8th step, an average of the generator with ramp-up
import copy, torch, torch.nn as nn, torch.nn.functional as F
from c import seed, final

seed()


class D_(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 32), nn.Linear(33, 1)

    def forward(self, x):
        h = F.leaky_relu(self.a(x), 0.2)
        s = h.std(0).mean().expand(len(h), 1)
        return self.b(torch.cat([h, s], 1))


G = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16))
D = D_()
E_ = copy.deepcopy(G).eval().requires_grad_(False)
og, od = torch.optim.Adam(G.parameters(), 1e-3, (0.0, 0.99)), torch.optim.Adam(D.parameters(), 1e-3, (0.0, 0.99))
for step in range(120):
    x = torch.randn(32, 16) * 2 + 1
    G.requires_grad_(True)
    D.requires_grad_(False)
    og.zero_grad(set_to_none=True)
    loss = F.softplus(-D(G(torch.randn(32, 8)))).mean()
    loss.backward()
    og.step()
    G.requires_grad_(False)
    D.requires_grad_(True)
    od.zero_grad(set_to_none=True)
    F.softplus(D(G(torch.randn(32, 8)))).mean().backward()
    F.softplus(-D(x)).mean().backward()
    od.step()
    if step % 8 == 0:
        od.zero_grad(set_to_none=True)
        xr = x.clone().requires_grad_()
        (g,) = torch.autograd.grad(D(xr).sum(), xr, create_graph=True)
        (g.square().sum(1).mean() * 5 * 8).backward()
        od.step()
    beta = min(0.995, 0.5 ** (32 / max(32 * step * 0.05, 1e-8)))
    with torch.no_grad():
        for p, q in zip(E_.parameters(), G.parameters()):
            p.copy_(q.lerp(p, beta))
        for p, q in zip(E_.buffers(), G.buffers()):
            p.copy_(q)
    if step % 40 == 39:
        E_(torch.randn(64, 8))
final(loss, G, D, E_)
