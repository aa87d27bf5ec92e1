"""A Wasserstein GAN with a gradient penalty: eight Gaussians on a circle."""

import math

import torch
from kit import FAULT, metric, tell
from torch import nn

torch.manual_seed(114)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, z):
        return self.net(z)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1)
        )

    def forward(self, x):
        return self.net(x).squeeze(1)


def real(count):
    angle = 2 * math.pi * torch.randint(0, 8, (count,)) / 8
    return 2 * torch.stack([angle.cos(), angle.sin()], dim=1) + 0.05 * torch.randn(count, 2)


def penalty(critic, a, b):
    """How far the critic's slope is from one, on the way between the real and the made."""
    share = torch.rand(len(a), 1)
    between = (share * a + (1 - share) * b).requires_grad_()
    slope = torch.autograd.grad(critic(between).sum(), between, create_graph=not FAULT)[0]
    return ((slope.norm(dim=1) - 1) ** 2).mean()


generator, critic = Generator(), Critic()
optimizer_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
optimizer_c = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9))
losses = []
for _step in range(20):
    for _ in range(3):
        x = real(32)
        with torch.no_grad():
            fake = generator(torch.randn(32, 4))
        loss_c = critic(fake).mean() - critic(x).mean() + 10 * penalty(critic, x, fake)
        optimizer_c.zero_grad()
        loss_c.backward()
        optimizer_c.step()
        losses.append(loss_c.detach())
    critic.requires_grad_(False)
    loss_g = -critic(generator(torch.randn(32, 4))).mean()
    optimizer_g.zero_grad()
    loss_g.backward()
    optimizer_g.step()
    critic.requires_grad_(True)

probe = real(256).requires_grad_()
slope = torch.autograd.grad(critic(probe).sum(), probe)[0].norm(dim=1).mean()
metric("slope", slope)
tell(critic, losses)
