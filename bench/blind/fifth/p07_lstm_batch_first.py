"""An LSTM over sensor series (batch, time, channels), one label each."""

import torch
import torch.nn.functional as F
from kit import FAULT, tell
from torch import nn


class Series(nn.Module):
    def __init__(self, channels=6, width=24, classes=3):
        super().__init__()
        self.rnn = nn.LSTM(channels, width, batch_first=not FAULT)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        out, _ = self.rnn(x)
        return self.head(out[:, -1])


torch.manual_seed(0)
x = torch.randn(320, 15, 6).cumsum(dim=1) / 4
y = torch.bucketize(x[:, -4:, 0].mean(dim=1), torch.tensor([-0.4, 0.4]))
model = Series()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
losses = []
for epoch in range(3):
    for at in torch.randperm(len(x)).split(20):
        loss = F.cross_entropy(model(x[at]), y[at])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
tell(model, losses)
