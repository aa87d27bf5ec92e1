"""SAM whose step takes a closure and does both forward-backward passes itself."""

import torch
from torch import nn


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base, rho=0.05, **kw):
        super().__init__(params, dict(rho=rho, **kw))
        self.base = base(self.param_groups, **kw)

    @torch.no_grad()
    def step(self, closure=None):
        closure = torch.enable_grad()(closure)
        loss = closure()
        params = [p for g in self.param_groups for p in g["params"] if p.grad is not None]
        norm = torch.norm(torch.stack([p.grad.norm() for p in params])) + 1e-12
        moved = [p.grad * (self.param_groups[0]["rho"] / norm) for p in params]
        torch._foreach_add_(params, moved)
        self.zero_grad()
        closure()
        torch._foreach_sub_(params, moved)
        self.base.step()
        self.zero_grad()
        return loss


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 4, 3, padding=1)
        self.fc = nn.Linear(4 * 12, 2)

    def forward(self, x):
        x = torch.relu(self.conv(x))  # plant: forward
        return self.fc(x.flatten(1))


torch.manual_seed(3)
net = Net()
sam = SAM(net.parameters(), torch.optim.Adam, lr=0.01)
data = torch.randn(40, 1, 12)
labels = (data.mean(dim=(1, 2)) > 0).long()
for i in range(7):  # turn
    noisy = data + 0.1 * torch.randn_like(data)  # plant: data

    def closure():
        out = net(noisy)  # plant: output
        loss = nn.functional.cross_entropy(out, labels)  # plant: loss
        loss.backward()
        return loss

    print(i, sam.step(closure).item())
