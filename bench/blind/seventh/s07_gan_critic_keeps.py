"""A GAN on a ring of points: the critic's turn, then the generator's."""

import math

import torch
from kit import FAULT, metric, tell
from torch import nn

torch.manual_seed(7)
BATCH, LATENT = 64, 8


def real(count):
    angle = 2 * math.pi * torch.rand(count)
    return torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(count, 2)


def mlp(inside, outside):
    return nn.Sequential(
        nn.Linear(inside, 48), nn.LeakyReLU(0.2), nn.Linear(48, 48), nn.LeakyReLU(0.2), nn.Linear(48, outside)
    )


class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = mlp(LATENT, 2)
        self.critic = mlp(2, 1)


def bce(logits, label):
    return nn.functional.binary_cross_entropy_with_logits(logits, torch.full_like(logits, label))


gan = Gan()
opt_g = torch.optim.Adam(gan.generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
opt_d = torch.optim.Adam(gan.critic.parameters(), lr=2e-3, betas=(0.5, 0.999))
losses = []
for _ in range(40):
    x = real(BATCH)
    fake = gan.generator(torch.randn(BATCH, LATENT))

    if not FAULT:
        opt_d.zero_grad()
    loss_d = bce(gan.critic(x), 0.9) + bce(gan.critic(fake.detach()), 0.0)
    loss_d.backward()
    opt_d.step()
    if FAULT:
        opt_d.zero_grad()

    opt_g.zero_grad()
    loss_g = bce(gan.critic(fake), 1.0)
    loss_g.backward()
    opt_g.step()
    losses.append(loss_d.detach() + loss_g.detach())
with torch.no_grad():
    radius = gan.generator(torch.randn(512, LATENT)).norm(dim=1)
    metric("radius", (radius - 1).abs().mean())
tell(gan, losses)
