# RealNVP with ActNorm initialised by the first batch (data-dependent init in forward), log-det added to the loss
import torch, torch.nn as nn
from c import seed, final

seed()


class ActNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.s, self.b = nn.Parameter(torch.zeros(d)), nn.Parameter(torch.zeros(d))
        self.register_buffer("done", torch.tensor(False))

    def forward(self, x):
        if not self.done:
            with torch.no_grad():
                self.b.copy_(-x.mean(0))
                self.s.copy_(-x.std(0).log())
                self.done.fill_(True)
        return (x + self.b) * self.s.exp(), self.s.sum().expand(len(x))


class Coupling(nn.Module):
    def __init__(self, flip):
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 4))
        nn.init.zeros_(self.net[2].weight)
        nn.init.zeros_(self.net[2].bias)

    def forward(self, x):
        a, b = x.chunk(2, 1)
        if self.flip:
            a, b = b, a
        s, t = self.net(a).chunk(2, 1)
        s = s.tanh()
        b = b * s.exp() + t
        return torch.cat([b, a] if self.flip else [a, b], 1), s.sum(1)


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.ModuleList([x for i in range(3) for x in (ActNorm(4), Coupling(i % 2))])

    def forward(self, x):
        ld = 0
        for l in self.l:
            x, d = l(x)
            ld = ld + d
        return x, ld


f = Flow()
opt = torch.optim.Adamax(f.parameters(), 2e-3)
for step in range(40):
    x = torch.randn(64, 4) @ torch.tensor([[1.0, 0.5, 0, 0], [0, 1, 0.3, 0], [0, 0, 2, 0], [0.1, 0, 0, 0.5]]) + 3
    z, ld = f(x)
    loss = (0.5 * z.square().sum(1) - ld).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
final(loss, f)
