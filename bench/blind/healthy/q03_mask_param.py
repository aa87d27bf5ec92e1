# Gradual magnitude pruning: masks are frozen parameters beside their weights, renewed every 20 steps
import torch, torch.nn as nn, torch.nn.functional as F
from c import seed, final

seed()


class MLinear(nn.Linear):
    def __init__(self, *a):
        super().__init__(*a)
        self.mask = nn.Parameter(torch.ones_like(self.weight), requires_grad=False)

    def forward(self, x):
        return F.linear(x, self.weight * self.mask, self.bias)


m = nn.Sequential(MLinear(16, 32), nn.ReLU(), MLinear(32, 4))
o = torch.optim.Adam([p for p in m.parameters() if p.requires_grad], 1e-3)
W = torch.randn(16, 4)
for step in range(120):
    if step and step % 20 == 0:
        for l in (m[0], m[2]):
            k = int(l.weight.numel() * min(0.6, step / 200))
            l.mask.data = (l.weight.abs() >= l.weight.abs().flatten().kthvalue(k).values).float()
    x = torch.randn(64, 16)
    y = (x @ W).argmax(1)
    loss = F.cross_entropy(m(x), y)
    o.zero_grad()
    loss.backward()
    o.step()
final(loss, m)
