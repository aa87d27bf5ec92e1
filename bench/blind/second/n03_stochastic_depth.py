# right: stochastic depth, some blocks have no gradient in some steps
import torch, torch.nn as nn
from c import seed, final

seed()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(16, 32)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32), nn.GELU()) for _ in range(6))
        self.out = nn.Linear(32, 4)

    def forward(self, x):
        h = self.inp(x)
        for i, b in enumerate(self.blocks):
            if self.training and torch.rand(()) < 0.1 * i:
                continue
            h = h + b(h)
        return self.out(h)


m = Net()
opt = torch.optim.AdamW(m.parameters(), 2e-3)
g = torch.Generator().manual_seed(1)
for step in range(30):
    x = torch.randn(32, 16, generator=g)
    loss = nn.functional.cross_entropy(m(x), x[:, :4].argmax(1))
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item())
final(loss, m)
