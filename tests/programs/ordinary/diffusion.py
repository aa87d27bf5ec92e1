"""A toy denoising diffusion model on two-dimensional points, with sampling at the end."""

import torch
import torch.nn as nn

torch.manual_seed(0)
T = 20
betas = torch.linspace(1e-3, 0.2, T)
alphas_bar = torch.cumprod(1 - betas, 0)


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Embedding(T, 8)
        self.net = nn.Sequential(nn.Linear(10, 32), nn.SiLU(), nn.Linear(32, 2))

    def forward(self, x, t):
        joined = torch.cat([x, self.time(t)], dim=-1)  # plant: forward
        return self.net(joined)


model = Denoiser()
optim = torch.optim.AdamW(model.parameters(), lr=2e-3)
angles = torch.rand(256) * 6.28
points = torch.stack([angles.cos(), angles.sin()], 1)
for step in range(8):  # turn
    x0 = points[torch.randint(0, 256, (64,))]  # plant: data
    t = torch.randint(0, T, (64,))
    noise = torch.randn_like(x0)
    a = alphas_bar[t].unsqueeze(1)
    xt = a.sqrt() * x0 + (1 - a).sqrt() * noise  # plant: noised
    loss = ((model(xt, t) - noise) ** 2).mean()  # plant: loss
    optim.zero_grad()
    loss.backward()
    optim.step()
    print(f"{step}: {loss.item()}")

with torch.no_grad():
    x = torch.randn(8, 2)
    for i in reversed(range(T)):
        eps = model(x, torch.full((8,), i))
        x = (x - betas[i] / (1 - alphas_bar[i]).sqrt() * eps) / (1 - betas[i]).sqrt()
        if i:
            x = x + betas[i].sqrt() * torch.randn_like(x)
print("sampled radius", x.norm(dim=1).mean().item())
