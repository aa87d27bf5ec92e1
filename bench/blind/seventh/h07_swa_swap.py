"""Weights are averaged from step 20; each evaluation swaps the average in, recalibrates batch norm, and swaps all back."""

import copy

import torch
from kit import metric, tell
from torch import nn
from torch.optim.swa_utils import AveragedModel, update_bn

torch.manual_seed(402)
x = torch.randn(1152, 3, 8, 8)
y = (x.mean(dim=(2, 3)) @ torch.randn(3, 4) + x[:, 0, :2, :2].flatten(1)).argmax(dim=1)
model = nn.Sequential(
    nn.Conv2d(3, 12, 3, padding=1, bias=False),
    nn.BatchNorm2d(12),
    nn.ReLU(),
    nn.Conv2d(12, 12, 3, stride=2),
    nn.BatchNorm2d(12),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(108, 4),
)
average = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
data = torch.utils.data.TensorDataset(x[:1024], y[:1024])
loader = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True)


def evaluate():
    kept = copy.deepcopy(model.state_dict())
    state = torch.random.get_rng_state()
    model.load_state_dict(average.module.state_dict())
    update_bn(loader, model)
    model.eval()
    with torch.no_grad():
        value = nn.functional.cross_entropy(model(x[1024:]), y[1024:])
    model.load_state_dict(kept)
    torch.random.set_rng_state(state)
    model.train()
    return value


losses = []
step = 0
for epoch in range(3):
    for inputs, targets in loader:
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        step += 1
        if step >= 20:
            average.update_parameters(model)
    metric(f"heldout_loss_{epoch}", evaluate())
tell(model, losses)
