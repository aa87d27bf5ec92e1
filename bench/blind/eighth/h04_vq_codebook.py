"""Right: a vector quantiser whose codebook is a moving average; codes that die are put on rows of the batch."""

import torch
from kit import metric, tell
from torch import nn

torch.manual_seed(204)


class Quantiser(nn.Module):
    def __init__(self, codes=16, width=8, decay=0.9):
        super().__init__()
        self.decay = decay
        start = torch.randn(codes, width)
        self.register_buffer("code", start)
        self.register_buffer("count", torch.ones(codes))
        self.register_buffer("total", start.clone())

    @torch.no_grad()
    def follow(self, z, chosen):
        hot = nn.functional.one_hot(chosen, len(self.code)).float()
        self.count.lerp_(hot.sum(0), 1 - self.decay)
        self.total.lerp_(hot.T @ z, 1 - self.decay)
        dead = self.count < 0.2
        if dead.any():
            self.total[dead] = z[torch.randint(0, len(z), (int(dead.sum()),))]
            self.count[dead] = 1.0
        self.code.copy_(self.total / self.count[:, None])

    def forward(self, z):
        chosen = torch.cdist(z.detach(), self.code).argmin(1)
        q = self.code[chosen]
        commit = nn.functional.mse_loss(z, q)
        if self.training:
            self.follow(z.detach(), chosen)
        return z + (q - z).detach(), commit


class Auto(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 8))
        self.quantise = Quantiser()
        self.decode = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 12))

    def forward(self, x):
        q, commit = self.quantise(self.encode(x))
        return self.decode(q), commit


centres = torch.randn(10, 12)
model = Auto()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
losses = []
for step in range(60):
    x = centres[torch.randint(0, 10, (48,))] + 0.1 * torch.randn(48, 12)
    out, commit = model(x)
    loss = nn.functional.mse_loss(out, x) + 0.25 * commit
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
metric("loss", losses[-1])
tell(model, losses)
