"""A small GAN; the discriminator's loss also reaches the generator."""

import torch
from torch import nn
from c import FAULT, finish

torch.manual_seed(0)
G = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
D = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
opt_g = torch.optim.Adam(G.parameters(), 1e-3, betas=(0.5, 0.999))
opt_d = torch.optim.Adam(D.parameters(), 1e-3, betas=(0.5, 0.999))
bce = nn.BCEWithLogitsLoss()
losses = []
for step in range(40):
    real = torch.randn(32, 2) * 0.3 + torch.tensor([1.0, -1.0])
    opt_g.zero_grad()
    opt_d.zero_grad()
    fake = G(torch.randn(32, 8))
    d_in = fake if FAULT else fake.detach()  # FAULT: no detach
    d_loss = bce(D(real), torch.ones(32, 1)) + bce(D(d_in), torch.zeros(32, 1))
    d_loss.backward(retain_graph=FAULT)
    opt_d.step()
    g_loss = bce(D(G(torch.randn(32, 8))), torch.ones(32, 1))
    g_loss.backward()
    opt_g.step()
    losses.append(g_loss.item())
finish(losses, G, D)
