"""Sharpness-aware minimization with first_step and second_step (after davda54/sam)."""

import torch
import torch.nn as nn


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base_optimizer, rho=0.05, **kwargs):
        super().__init__(params, dict(rho=rho, **kwargs))
        self.base_optimizer = base_optimizer(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self, zero_grad=False):
        grad_norm = torch.norm(torch.stack([p.grad.norm() for g in self.param_groups for p in g["params"]]))
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old_p"] = p.data.clone()
                p.add_(p.grad * group["rho"] / (grad_norm + 1e-12))
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad=False):
        for group in self.param_groups:
            for p in group["params"]:
                p.data = self.state[p]["old_p"]
        self.base_optimizer.step()
        if zero_grad:
            self.zero_grad()


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(10, 24), nn.Linear(24, 3)

    def forward(self, x):
        x = torch.relu(self.fc1(x))  # plant: forward
        return self.fc2(x)


torch.manual_seed(0)
model = MLP()
criterion = nn.CrossEntropyLoss()
optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
inputs, targets = torch.randn(64, 10), torch.randint(0, 3, (64,))
for step in range(8):  # turn
    batch = inputs + 0.01 * torch.randn_like(inputs)  # plant: data
    logits = model(batch)  # plant: output
    loss = criterion(logits, targets)  # plant: loss
    loss.backward()
    optimizer.first_step(zero_grad=True)
    criterion(model(batch), targets).backward()
    optimizer.second_step(zero_grad=True)
    print("step", step, "loss", loss.item())
