"""A regression with an exponential moving average of the weights kept by hand, evaluated at the end of each epoch."""

import copy

import torch
import torch.nn as nn


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.fc = nn.Linear(d, d)

    def forward(self, x):
        y = self.fc(self.norm(x))  # plant: block
        return x + torch.relu(y)


torch.manual_seed(11)
model = nn.Sequential(Block(8), Block(8), nn.Linear(8, 1))
ema_model = copy.deepcopy(model)
for p in ema_model.parameters():
    p.requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
x_train, x_val = torch.randn(128, 8), torch.randn(32, 8)
y_train, y_val = x_train[:, :1] * x_train[:, 1:2], x_val[:, :1] * x_val[:, 1:2]
decay = 0.9

for epoch in range(3):
    for xb, yb in zip(x_train.split(32), y_train.split(32), strict=True):  # turn
        xb = (xb - x_train.mean(0)) / x_train.std(0)  # plant: data
        pred = model(xb)  # plant: output
        loss = nn.functional.mse_loss(pred, yb)  # plant: loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for e, p in zip(ema_model.parameters(), model.parameters(), strict=True):
                e.mul_(decay).add_(p, alpha=1 - decay)
    ema_model.eval()
    with torch.no_grad():
        val = nn.functional.mse_loss(ema_model(x_val), y_val)
    print(f"epoch {epoch} train {loss.item()} val(ema) {val.item()}")
