"""Right: SAM: weights are moved uphill, a second gradient is taken there, and they are put back before the update."""

import torch
from kit import metric, tell
from torch import nn

torch.manual_seed(24)
x = torch.randn(768, 1, 8, 8)
y = (x[:, 0, :4].mean((1, 2)) > x[:, 0, 4:].mean((1, 2))).long() + 2 * (x[:, 0, 2, 2] > 0).long()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8 * 64, 4)

    def forward(self, x):
        return self.head(nn.functional.relu(self.norm(self.conv(x))).flatten(1))


def running(model, momentum):
    for m in model.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.momentum = momentum


model = Net()
params = list(model.parameters())
optimizer = torch.optim.SGD(params, lr=0.05, momentum=0.9)
losses = []
for _ in range(40):
    index = torch.randint(640, (64,))
    loss = nn.functional.cross_entropy(model(x[index]), y[index])
    loss.backward()
    with torch.no_grad():
        norm = torch.stack([p.grad.norm() for p in params]).norm()
        kept = [p.clone() for p in params]
        for p in params:
            p.add_(p.grad, alpha=float(0.05 / (norm + 1e-12)))
    optimizer.zero_grad()
    running(model, 0.0)
    nn.functional.cross_entropy(model(x[index]), y[index]).backward()
    running(model, 0.1)
    with torch.no_grad():
        for p, k in zip(params, kept, strict=True):
            p.copy_(k)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.detach())
model.eval()
with torch.no_grad():
    metric("loss", nn.functional.cross_entropy(model(x[640:]), y[640:]))
tell(model, losses)
