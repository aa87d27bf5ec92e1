# DDPM on 8x8 images, batch of 8: the coefficients of a sample against the width axis
import torch, torch.nn as nn
from c import FAULT, seed, final

seed()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Embedding(50, 16)
        self.c1 = nn.Conv2d(1, 16, 3, padding=1)
        self.c2 = nn.Conv2d(16, 16, 3, padding=1)
        self.c3 = nn.Conv2d(16, 1, 3, padding=1)

    def forward(self, x, t):
        h = torch.relu(self.c1(x) + self.time(t)[:, :, None, None])
        return self.c3(torch.relu(self.c2(h)))


betas = torch.linspace(1e-3, 0.2, 50)
abar = torch.cumprod(1 - betas, 0)


def extract(a, t, x):
    if FAULT:
        return a[t]
    return a[t].view(-1, 1, 1, 1)


net = Net()
opt = torch.optim.Adam(net.parameters(), 2e-3)
g = torch.Generator().manual_seed(1)
for step in range(40):
    x = torch.sin(torch.rand(8, 1, 8, 1, generator=g) * 6 + torch.arange(8.0))
    t = torch.randint(0, 50, (8,), generator=g)
    e = torch.randn(8, 1, 8, 8, generator=g)
    xt = extract(abar, t, x).sqrt() * x + (1 - extract(abar, t, x)).sqrt() * e
    loss = nn.functional.mse_loss(net(xt, t), e)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item())
final(loss, net)
