"""Healthy: a CNN with an average of weights and buffers, which is swapped in for each evaluation and out again."""

import torch
from kit import tell
from torch import nn

torch.manual_seed(110)
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.Dropout2d(0.1),
    nn.AdaptiveAvgPool2d(2),
    nn.Flatten(),
    nn.Linear(64, 5),
)
average = {k: v.detach().clone() for k, v in model.state_dict().items()}
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
means = torch.randn(5, 3, 8, 8)


def batch():
    y = torch.randint(0, 5, (32,))
    return means[y] + 0.7 * torch.randn(32, 3, 8, 8), y


losses = []
for step in range(40):
    x, y = batch()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        for k, v in model.state_dict().items():
            if v.is_floating_point():
                average[k].lerp_(v, 0.1)
            else:
                average[k].copy_(v)
    if step % 10 == 9:
        kept = {k: v.detach().clone() for k, v in model.state_dict().items()}
        model.load_state_dict(average)
        model.eval()
        with torch.no_grad():
            x, y = batch()
            print("average", nn.functional.cross_entropy(model(x), y).item())
        model.load_state_dict(kept)
        model.train()
    losses.append(loss.detach())
tell(model, losses)
