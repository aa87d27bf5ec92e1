"""A NaN target, selected away after squaring: the loss is finite, the gradient is not (pytorch#64305)."""

import sys

import torch
from torch import nn

HEALTHY = "--healthy" in sys.argv
BAD_STEP, BAD_SAMPLE = 4, 7
torch.manual_seed(0)
torch.set_num_threads(1)


class Forecaster(nn.Module):
    def __init__(self, d=6):
        super().__init__()
        self.encoder = nn.Linear(d, 12)
        self.decoder = nn.Linear(12, 3)

    def forward(self, x):
        return self.decoder(torch.tanh(self.encoder(x)))


model = Forecaster()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
mixing = torch.randn(6, 3)

for step in range(8):
    x = torch.randn(12, 6)
    target = x @ mixing
    if step >= BAD_STEP:
        target[BAD_SAMPLE, 1] = float("nan")  # a missing observation
    valid = ~torch.isnan(target)
    prediction = model(x)
    if HEALTHY:
        loss = (prediction[valid] - target[valid]).pow(2).mean()
    else:
        loss = (prediction - target).pow(2)[valid].mean()  # <- fault
    optimizer.zero_grad()
    loss.backward()
    grad = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    print(f"step {step} loss {loss.item():.6f} grad {grad.item():.6f}")
    optimizer.step()
