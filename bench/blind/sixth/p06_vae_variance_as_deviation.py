"""A variational autoencoder for 16 numbers that hang on 3."""

import torch
from kit import FAULT, metric, tell
from torch import nn


class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 2 * 4))
        self.decoder = nn.Sequential(nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 16))

    def forward(self, x):
        mean, logvar = self.encoder(x).chunk(2, dim=-1)
        deviation = logvar.exp() if FAULT else (0.5 * logvar).exp()
        return self.decoder(mean + deviation * torch.randn_like(mean)), mean, logvar


torch.manual_seed(0)
x = torch.tanh(torch.randn(1024, 3) @ torch.randn(3, 16)) + 0.1 * torch.randn(1024, 16)
model = Vae()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
losses = []
for step in range(200):
    batch = x[torch.randint(0, 896, (64,))]
    again, mean, logvar = model(batch)
    near = ((again - batch) ** 2).sum(dim=1) / (2 * 0.1)
    kl = -0.5 * (1 + logvar - mean**2 - logvar.exp()).sum(dim=1)
    loss = (near + kl).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
with torch.no_grad():
    batch = x[896:]
    mean, logvar = model.encoder(batch).chunk(2, dim=-1)
    again = model.decoder(mean + (0.5 * logvar).exp() * torch.randn_like(mean))
    kl = -0.5 * (1 + logvar - mean**2 - logvar.exp()).sum(dim=1)
    metric("bound", (((again - batch) ** 2).sum(dim=1) / 0.2 + kl).mean())
tell(model, losses)
