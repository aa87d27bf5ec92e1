# quantisation-aware training: rounding without a straight-through gradient
import torch, torch.nn as nn, torch.nn.functional as F
from c import FAULT, seed, final

seed()


def fake_quant(w, bits=4):
    s = w.detach().abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
    q = torch.round(w / s).clamp(-8, 7) * s
    return q if FAULT else w + (q - w).detach()


class QLinear(nn.Linear):
    def forward(self, x):
        return F.linear(x, fake_quant(self.weight), self.bias)


model = nn.Sequential(QLinear(16, 64), nn.ReLU(), QLinear(64, 64), nn.ReLU(), nn.Linear(64, 4))
opt = torch.optim.Adam(model.parameters(), 2e-3)
g = torch.Generator().manual_seed(1)
for step in range(40):
    x = torch.randn(32, 16, generator=g)
    y = x[:, :4].argmax(1)
    loss = F.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item())
final(loss, model)
