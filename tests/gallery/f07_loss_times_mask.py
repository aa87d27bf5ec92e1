"""loss * mask with infinity in the excluded target positions: inf * 0 = NaN (WeatherGenerator#2723)."""

import sys

import torch
from torch import nn

HEALTHY = "--healthy" in sys.argv
BAD_STEP, BAD_SAMPLE = 4, 3
torch.manual_seed(0)
torch.set_num_threads(1)


class MaskedL1(nn.Module):
    def forward(self, prediction, target, mask):
        error = (prediction - target).abs()
        if HEALTHY:
            return torch.where(mask > 0, error, 0.0).sum() / mask.sum()
        return (error * mask).sum() / mask.sum()  # <- fault


class Forecaster(nn.Module):
    def __init__(self, d=6):
        super().__init__()
        self.encoder = nn.Linear(d, 16)
        self.decoder = nn.Linear(16, 3)

    def forward(self, x):
        return self.decoder(torch.tanh(self.encoder(x)))


model = Forecaster()
criterion = MaskedL1()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
mixing = torch.randn(6, 3)

for step in range(7):
    x = torch.randn(64, 6)
    target = x @ mixing
    mask = torch.ones_like(target)
    mask[:, 2] = (torch.rand(64) > 0.3).float()
    if step == BAD_STEP:
        mask[BAD_SAMPLE, 2] = 0.0
        target[BAD_SAMPLE, 2] = float("inf")  # the archive's code for "no observation"
    loss = criterion(model(x), target, mask)
    loss.backward()
    grad = torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
    print(f"step {step} loss {loss.item():.6f} grad {grad.item():.6f}")
    optimizer.step()
    optimizer.zero_grad()
