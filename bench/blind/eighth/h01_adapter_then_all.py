"""Right: the trunk is frozen at first, then joins the optimizer as a second group with a warm-up of its own."""

import torch
from kit import metric, tell
from torch import nn

torch.manual_seed(201)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.trunk(x))


def freeze(module, frozen):
    module.requires_grad_(not frozen)
    module.train(not frozen)


x = torch.randn(1200, 16)
y = (x @ torch.randn(16, 4)).argmax(dim=1)
model = Net()
freeze(model.trunk, True)
optimizer = torch.optim.AdamW(model.head.parameters(), lr=1e-2)
losses = []
for step in range(60):
    if step == 20:
        freeze(model.trunk, False)
        optimizer.add_param_group({"params": list(model.trunk.parameters()), "lr": 0.0})
    if step >= 20:
        optimizer.param_groups[1]["lr"] = 3e-3 * min(1.0, (step - 20) / 10)
    rows = torch.randint(0, 1024, (32,))
    loss = nn.functional.cross_entropy(model(x[rows]), y[rows], label_smoothing=0.1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
model.eval()
with torch.no_grad():
    metric("loss", nn.functional.cross_entropy(model(x[1024:]), y[1024:]))
tell(model, losses)
