# Quantisation-aware training by hand: straight-through fake quantisation, batch norm frozen after some epochs
import torch, torch.nn as nn, torch.nn.functional as F
from c import seed, final

seed()


def fq(w, s):
    q = (w / s).round().clamp(-128, 127) * s
    return w + (q - w).detach()


class QLinear(nn.Linear):
    def __init__(self, i, o):
        super().__init__(i, o)
        self.register_buffer("amax", torch.zeros(()))
        self.observing = True

    def forward(self, x):
        if self.training and self.observing:
            self.amax.mul_(0.9).add_(0.1 * x.detach().abs().max())
        x = fq(x, self.amax.clamp(min=1e-3) / 127)
        return F.linear(x, fq(self.weight, self.weight.detach().abs().max() / 127), self.bias)


m = nn.Sequential(QLinear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), QLinear(32, 4))
o = torch.optim.SGD(m.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
s = torch.optim.lr_scheduler.StepLR(o, 4, 0.5)
W = torch.randn(16, 4)
for epoch in range(8):
    m.train()
    if epoch >= 5:
        m[1].eval()
    if epoch >= 6:
        m[0].observing = m[3].observing = False
    for _ in range(12):
        x = torch.randn(64, 16)
        y = (x @ W).argmax(1)
        loss = F.cross_entropy(m(x), y)
        o.zero_grad()
        loss.backward()
        o.step()
    s.step()
    m.eval()
    with torch.no_grad():
        m(torch.randn(64, 16))
final(loss, m)
