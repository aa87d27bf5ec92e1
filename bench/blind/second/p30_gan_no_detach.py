# GAN: generator gradients of the discriminator's turn stay in .grad
import torch, torch.nn as nn, torch.nn.functional as F
from c import FAULT, seed, final

seed()
G = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 16))
D = nn.Sequential(nn.Linear(16, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
og = torch.optim.Adam(G.parameters(), 1e-3, betas=(0.5, 0.999))
od = torch.optim.Adam(D.parameters(), 1e-3, betas=(0.5, 0.999))
g = torch.Generator().manual_seed(1)
for step in range(40):
    real = torch.randn(32, 16, generator=g) * 0.5 + torch.linspace(-1, 1, 16)
    z = torch.randn(32, 8, generator=g)
    og.zero_grad()
    od.zero_grad()
    fake = G(z)
    d_loss = F.softplus(-D(real)).mean() + F.softplus(D(fake if FAULT else fake.detach())).mean()
    d_loss.backward()
    od.step()
    g_loss = F.softplus(-D(G(z))).mean()
    g_loss.backward()
    og.step()
    print(step, d_loss.item(), g_loss.item())
final(g_loss, G, D)
