"""A toy CycleGAN: one optimizer of both generators, one of each discriminator, three in all."""

import itertools

import torch
from torch import nn


def mlp(i, o):
    return nn.Sequential(nn.Linear(i, 16), nn.ReLU(), nn.Linear(16, o))


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp(5, 5)

    def forward(self, x):
        delta = self.net(x)  # plant: generator
        return x + 0.1 * delta


torch.manual_seed(5)
G_AB, G_BA, D_A, D_B = Translator(), Translator(), mlp(5, 1), mlp(5, 1)
optimizer_G = torch.optim.Adam(itertools.chain(G_AB.parameters(), G_BA.parameters()), lr=1e-3)
optimizer_D_A = torch.optim.Adam(D_A.parameters(), lr=1e-3)
optimizer_D_B = torch.optim.Adam(D_B.parameters(), lr=1e-3)
mse, l1 = nn.MSELoss(), nn.L1Loss()
A, B = torch.randn(128, 5), torch.randn(128, 5) * 0.5 + 1.0

for it in range(8):  # turn
    real_A = A[it * 16 : it * 16 + 16].clone()  # plant: data
    real_B = B[it * 16 : it * 16 + 16]
    optimizer_G.zero_grad()
    fake_B, fake_A = G_AB(real_A), G_BA(real_B)
    loss_GAN = mse(D_B(fake_B), torch.ones(16, 1)) + mse(D_A(fake_A), torch.ones(16, 1))
    loss_cycle = l1(G_BA(fake_B), real_A) + l1(G_AB(fake_A), real_B)  # plant: cycle-loss
    loss_G = loss_GAN + 10.0 * loss_cycle
    loss_G.backward()
    optimizer_G.step()

    optimizer_D_A.zero_grad()
    loss_D_A = 0.5 * (mse(D_A(real_A), torch.ones(16, 1)) + mse(D_A(fake_A.detach()), torch.zeros(16, 1)))
    loss_D_A.backward()
    optimizer_D_A.step()

    optimizer_D_B.zero_grad()
    loss_D_B = 0.5 * (mse(D_B(real_B), torch.ones(16, 1)) + mse(D_B(fake_B.detach()), torch.zeros(16, 1)))  # plant: d-b
    loss_D_B.backward()
    optimizer_D_B.step()
    print(it, loss_G.item(), loss_D_A.item(), loss_D_B.item())
