"""A GAN in the form of the DCGAN tutorial: the discriminator is updated, then the generator."""

import torch
import torch.nn as nn
import torch.optim as optim

torch.manual_seed(999)
nz, nd = 4, 6


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(nn.Linear(nz, 16), nn.BatchNorm1d(16), nn.ReLU(True), nn.Linear(16, nd))

    def forward(self, z):
        sample = self.main(z)  # plant: generator
        return torch.tanh(sample)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(nn.Linear(nd, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1), nn.Sigmoid())

    def forward(self, x):
        return self.main(x).view(-1)


netG, netD = Generator(), Discriminator()
criterion = nn.BCELoss()
optimizerD = optim.Adam(netD.parameters(), lr=2e-3, betas=(0.5, 0.999))
optimizerG = optim.Adam(netG.parameters(), lr=2e-3, betas=(0.5, 0.999))
real_data = torch.tanh(torch.randn(256, nd) * 0.5 + 0.3)

for i in range(8):  # turn
    netD.zero_grad()
    real = real_data[i * 32 : (i + 1) * 32] * 0.9  # plant: data
    output = netD(real)
    errD_real = criterion(output, torch.ones(32))  # plant: loss-of-d
    errD_real.backward()
    fake = netG(torch.randn(32, nz))
    errD_fake = criterion(netD(fake.detach()), torch.zeros(32))
    errD_fake.backward()
    optimizerD.step()

    netG.zero_grad()
    errG = criterion(netD(fake), torch.ones(32))  # plant: loss-of-g
    errG.backward()
    optimizerG.step()
    print(f"[{i}] Loss_D: {(errD_real + errD_fake).item()} Loss_G: {errG.item()}")
