"""A variational autoencoder."""

import torch
import torch.nn.functional as F
from kit import FAULT, tell
from torch import nn


class VAE(nn.Module):
    def __init__(self, d=24, z=4):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(d, 48), nn.ReLU(), nn.Linear(48, 2 * z))
        self.decoder = nn.Sequential(nn.Linear(z, 48), nn.ReLU(), nn.Linear(48, d))

    def forward(self, x):
        mu, logvar = self.encoder(x).chunk(2, dim=1)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.decoder(z), mu, logvar


torch.manual_seed(0)
x = torch.randn(512, 4) @ torch.randn(4, 24) + 0.1 * torch.randn(512, 24)
model = VAE()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
losses = []
for step in range(60):
    batch = x[torch.randint(0, len(x), (32,))]
    again, mu, logvar = model(batch)
    recon = F.mse_loss(again, batch, reduction="none").sum(dim=1).mean()
    kl = (-0.5 * (1 + logvar - mu.square() - logvar.exp())).sum(dim=0 if FAULT else 1).mean()
    loss = recon + kl
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
tell(model, losses)
