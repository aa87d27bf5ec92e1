"""A regression with noise on the inputs against overfitting; batches are slices of one tensor."""

import torch
import torch.nn.functional as F
from kit import FAULT, tell
from torch import nn

torch.manual_seed(0)
x = torch.randn(160, 20)
y = torch.tanh(x[:, :5].sum(dim=1, keepdim=True))
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
losses = []
for epoch in range(6):
    for begin in torch.randperm(10).mul(16).tolist():
        inputs, targets = x[begin : begin + 16], y[begin : begin + 16]
        noise = 0.3 * torch.randn_like(inputs)
        if FAULT:
            inputs += noise
        else:
            inputs = inputs + noise
        loss = F.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
tell(model, losses)
