"""A class-conditional diffusion model on points; labels are dropped at times, for guidance without a classifier."""

import torch
import torch.nn.functional as F
from kit import FAULT, metric, tell
from torch import nn

CLASSES, T = 4, 50
NULL = 0 if FAULT else CLASSES


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.classes = nn.Embedding(CLASSES + 1, 32)
        self.times = nn.Embedding(T, 32)
        self.inp = nn.Linear(2, 32)
        self.net = nn.Sequential(nn.SiLU(), nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 2))

    def forward(self, x, t, label):
        return self.net(self.inp(x) + self.times(t) + self.classes(label))


torch.manual_seed(0)
centres = torch.tensor([[2.0, 2.0], [-2.0, 2.0], [2.0, -2.0], [-2.0, -2.0]])
labels = torch.randint(0, CLASSES, (1024,))
points = centres[labels] + 0.2 * torch.randn(1024, 2)
kept = torch.cumprod(1 - torch.linspace(1e-3, 0.2, T), dim=0)
model = Denoiser()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
losses = []
for step in range(150):
    at = torch.randint(0, 1024, (64,))
    t = torch.randint(0, T, (64,))
    noise = torch.randn(64, 2)
    noisy = kept[t].sqrt()[:, None] * points[at] + (1 - kept[t]).sqrt()[:, None] * noise
    label = labels[at].masked_fill(torch.rand(64) < 0.2, NULL)
    loss = F.mse_loss(model(noisy, t, label), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
with torch.no_grad():
    own = points[labels == 0][:200]
    t = torch.full((200,), T // 3)
    noise = torch.randn(200, 2)
    noisy = kept[t].sqrt()[:, None] * own + (1 - kept[t]).sqrt()[:, None] * noise
    metric("error of class 0", F.mse_loss(model(noisy, t, torch.zeros(200, dtype=torch.long)), noise))
tell(model, losses)
