"""Early stopping: the best model so far is deep-copied, at the end it is put back and evaluated."""

from copy import deepcopy

import torch
from torch import nn


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 32), nn.SELU(), nn.AlphaDropout(0.1))
        self.out = nn.Linear(32, 1)

    def forward(self, x):
        z = self.layers(x)  # plant: forward
        return self.out(z).squeeze(-1)


torch.manual_seed(37)
x, noise = torch.randn(96, 6), 0.3 * torch.randn(96)
y = x[:, 0] * 2 - x[:, 1] + noise
train_x, train_y, val_x, val_y = x[:64], y[:64], x[64:], y[64:]
model = Regressor()
optimizer = torch.optim.NAdam(model.parameters(), lr=2e-2)
best_loss, best_model, patience = float("inf"), None, 0
for epoch in range(10):  # turn
    model.train()
    batch = train_x[torch.randperm(64)] * 1.0  # plant: data
    pred = model(batch)  # plant: output
    loss = nn.functional.huber_loss(pred, train_y)  # plant: loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        val_loss = nn.functional.huber_loss(model(val_x), val_y).item()
    print(f"epoch {epoch}: train {loss.item()} val {val_loss}")
    if val_loss < best_loss:
        best_loss, best_model, patience = val_loss, deepcopy(model), 0
    else:
        patience += 1
    if patience > 4:
        break
model.load_state_dict(best_model.state_dict())
print("best", best_loss, nn.functional.huber_loss(best_model(val_x), val_y).item())
