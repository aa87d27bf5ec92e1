"""Improved Wasserstein GAN: a gradient penalty, and several updates of the critic for one of the generator."""

import torch
import torch.nn as nn
from torch.autograd import grad

torch.manual_seed(7)
N_CRITIC, LAMBDA = 2, 10.0


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1 = nn.Linear(2, 32)
        self.l2 = nn.Linear(32, 1)

    def forward(self, x):
        h = torch.tanh(self.l1(x))  # plant: critic
        return self.l2(h)


def gradient_penalty(critic, real, fake):
    alpha = torch.rand(real.size(0), 1)
    mixed = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    (gradients,) = grad(critic(mixed).sum(), mixed, create_graph=True)
    norm = gradients.norm(2, dim=1)  # plant: penalty
    return LAMBDA * ((norm - 1) ** 2).mean()


G = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 2))
D = Critic()
opt_g = torch.optim.Adam(G.parameters(), lr=1e-3, betas=(0.0, 0.9))
opt_d = torch.optim.Adam(D.parameters(), lr=1e-3, betas=(0.0, 0.9))
for iteration in range(5):
    for _ in range(N_CRITIC):  # turn
        real = torch.randn(24, 2) @ torch.tensor([[1.0, 0.4], [0.0, 0.6]])  # plant: data
        fake = G(torch.randn(24, 3)).detach()
        opt_d.zero_grad()
        d_loss = D(fake).mean() - D(real).mean() + gradient_penalty(D, real, fake)  # plant: critic-loss
        d_loss.backward()
        opt_d.step()
    opt_g.zero_grad()
    g_loss = -D(G(torch.randn(24, 3))).mean()
    g_loss.backward()
    opt_g.step()
    print("iter", iteration, "D", d_loss.item(), "G", g_loss.item())
