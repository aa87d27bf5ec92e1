"""Early stopping: the best weights are kept, and put back after the rate was too high for too long; then it is annealed."""

import copy

import torch
import torch.nn.functional as F
from kit import FAULT, metric, tell
from torch import nn

torch.manual_seed(0)
x = torch.randn(288, 24)
y = (x @ torch.randn(24, 4) + 1.0 * torch.randn(288, 4)).argmax(dim=1)
model = nn.Sequential(nn.Linear(24, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)


def validate():
    model.eval()
    with torch.no_grad():
        loss = F.cross_entropy(model(x[160:]), y[160:]).item()
    model.train()
    return loss


losses, best, best_loss, patience = [], None, float("inf"), 0
for epoch in range(20):
    for at in torch.randperm(160).split(32):
        loss = F.cross_entropy(model(x[at]), y[at])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    now = validate()
    if now < best_loss:
        best_loss, patience = now, 0
        best = model.state_dict() if FAULT else copy.deepcopy(model.state_dict())
    else:
        patience += 1
        if patience == 8:
            break
model.load_state_dict(best)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for at in torch.randperm(160).split(32):
    loss = F.cross_entropy(model(x[at]), y[at])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
metric("loss over best", validate() - best_loss)
tell(model, losses)
