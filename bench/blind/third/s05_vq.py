"""VQ-VAE; the codebook loss detaches the codebook."""

import torch
import torch.nn.functional as F
from torch import nn
from c import FAULT, finish

torch.manual_seed(0)


class VQ(nn.Module):
    def __init__(self, n, d):
        super().__init__()
        self.codebook = nn.Embedding(n, d)
        self.codebook.weight.data.uniform_(-1 / n, 1 / n)

    def forward(self, z):
        dist = torch.cdist(z, self.codebook.weight)
        q = self.codebook(dist.argmin(-1))
        commit = F.mse_loss(z, q.detach())
        book = F.mse_loss(q.detach(), z) if FAULT else F.mse_loss(q, z.detach())  # FAULT
        return z + (q - z).detach(), book + 0.25 * commit


class VQVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
        self.vq = VQ(32, 8)
        self.dec = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, x):
        q, aux = self.vq(self.enc(x))
        return F.mse_loss(self.dec(q), x) + aux


model = VQVAE()
opt = torch.optim.AdamW(model.parameters(), 2e-3, weight_decay=0.0)
basis = torch.randn(4, 16)
losses = []
for step in range(50):
    x = torch.randn(32, 4) @ basis
    loss = model(x)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    losses.append(loss.item())
finish(losses, model)
