"""A small denoising diffusion model on vectors of 32 numbers."""

import math

import torch
from kit import FAULT, metric, tell
from torch import nn

torch.manual_seed(6)
STEPS, WIDTH, BATCH = 100, 32, 32
beta = torch.linspace(1e-4, 0.06, STEPS)
alpha_bar = torch.cumprod(1 - beta, 0)
base = torch.randn(8, WIDTH)
data = (torch.randn(1024, 8) @ base) / math.sqrt(8)


def timestep_embedding(t, width=16):
    freqs = torch.exp(-math.log(1000) * torch.arange(width // 2) / (width // 2))
    angle = t[:, None].float() * freqs
    return torch.cat([angle.sin(), angle.cos()], 1)


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Linear(16, 64)
        self.inner = nn.Linear(WIDTH, 64)
        self.middle = nn.Linear(64, 64)
        self.outer = nn.Linear(64, WIDTH)

    def forward(self, x, t):
        h = nn.functional.silu(self.inner(x) + self.time(timestep_embedding(t)))
        return self.outer(h + nn.functional.silu(self.middle(h)))


def extract(table, t, x, spread=True):
    out = table[t]
    return out.reshape(-1, *[1] * (x.dim() - 1)) if spread else out


def q_sample(x, t, noise, spread):
    a = extract(alpha_bar.sqrt(), t, x, spread)
    b = extract((1 - alpha_bar).sqrt(), t, x, spread)
    return a * x + b * noise


model = Denoiser()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
loader = torch.utils.data.DataLoader(data[:896], batch_size=BATCH, shuffle=True, drop_last=True)
losses = []
for _epoch in range(2):
    for x in loader:
        t = torch.randint(STEPS, (len(x),))
        noise = torch.randn_like(x)
        if FAULT:
            noisy = q_sample(x, t, noise, spread=False)
        else:
            noisy = q_sample(x, t, noise, spread=True)
        loss = nn.functional.mse_loss(model(noisy, t), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
with torch.no_grad():
    x, t = data[896:], torch.arange(128) % STEPS
    noise = torch.randn_like(x)
    metric("error", nn.functional.mse_loss(model(q_sample(x, t, noise, True), t), noise))
tell(model, losses)
