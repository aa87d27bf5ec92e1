"""Variational autoencoder in the form of pytorch/examples/vae."""

import torch
from torch import nn, optim
from torch.nn import functional as F


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(36, 24)
        self.fc21, self.fc22 = nn.Linear(24, 3), nn.Linear(24, 3)
        self.fc3, self.fc4 = nn.Linear(3, 24), nn.Linear(24, 36)

    def encode(self, x):
        h1 = F.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)  # plant: std
        return mu + torch.randn_like(std) * std

    def forward(self, x):
        mu, logvar = self.encode(x.view(-1, 36))
        z = self.reparameterize(mu, logvar)
        h3 = F.relu(self.fc3(z))  # plant: decoder
        return torch.sigmoid(self.fc4(h3)), mu, logvar


def loss_function(recon_x, x, mu, logvar):
    BCE = ((recon_x - x.view(-1, 36)) ** 2).sum()
    KLD = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())  # plant: kld
    return BCE + KLD


torch.manual_seed(1)
model = VAE()
optimizer = optim.Adam(model.parameters(), lr=1e-3)
dataset = torch.rand(96, 6, 6)
for epoch in range(3):
    train_loss = 0
    for batch_idx in range(3):  # turn
        data = dataset[batch_idx * 32 : (batch_idx + 1) * 32].clamp(0, 1)  # plant: data
        optimizer.zero_grad()
        recon_batch, mu, logvar = model(data)
        loss = loss_function(recon_batch, data, mu, logvar)
        loss.backward()
        train_loss += loss.item()
        optimizer.step()
        print(f"Train Epoch: {epoch} [{batch_idx}/3]\tLoss: {loss.item() / len(data)}")
    print(f"====> Epoch: {epoch} Average loss: {train_loss / 96}")
