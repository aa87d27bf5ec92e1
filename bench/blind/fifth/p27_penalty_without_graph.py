"""WGAN-GP on a toy distribution."""

import torch
from kit import FAULT, tell
from torch import nn


def penalty(critic, real, fake):
    mix = torch.rand(len(real), 1)
    between = (mix * real + (1 - mix) * fake).requires_grad_()
    (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=not FAULT)
    return ((slope.norm(dim=1) - 1) ** 2).mean()


torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(4, 32), nn.LeakyReLU(0.2), nn.Linear(32, 2))
critic = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
g_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
c_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9))
losses = []
for step in range(20):
    for _ in range(3):
        angle = torch.rand(32) * 6.2832
        real = torch.stack([angle.cos(), angle.sin()], dim=1) + 0.05 * torch.randn(32, 2)
        with torch.no_grad():
            fake = generator(torch.randn(32, 4))
        loss = critic(fake).mean() - critic(real).mean() + 10 * penalty(critic, real, fake)
        c_optimizer.zero_grad()
        loss.backward()
        c_optimizer.step()
        losses.append(loss.item())
    loss = -critic(generator(torch.randn(32, 4))).mean()
    g_optimizer.zero_grad()
    loss.backward()
    g_optimizer.step()
    losses.append(loss.item())
tell(nn.ModuleList([generator, critic]), losses)
