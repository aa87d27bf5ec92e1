"""A classifier with functional dropout; the rate falls when the validation loss does not improve."""

import torch
import torch.nn.functional as F
from kit import FAULT, metric, tell
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(20, 64)
        self.two = nn.Linear(64, 64)
        self.head = nn.Linear(64, 5)

    def forward(self, x):
        x = F.relu(self.one(x))
        x = F.dropout(x, 0.4) if FAULT else F.dropout(x, 0.4, self.training)
        x = F.relu(self.two(x))
        x = F.dropout(x, 0.4) if FAULT else F.dropout(x, 0.4, self.training)
        return self.head(x)


torch.manual_seed(0)
x = torch.randn(640, 20)
y = (x @ torch.randn(20, 5)).argmax(dim=1)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=0)
losses = []
for epoch in range(8):
    model.train()
    for at in torch.randperm(512).split(32):
        loss = F.cross_entropy(model(x[at]), y[at])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        logits = model(x[512:])
    plateau.step(F.cross_entropy(logits, y[512:]))
metric("accuracy", (logits.argmax(1) == y[512:]).float().mean())
tell(model, losses)
