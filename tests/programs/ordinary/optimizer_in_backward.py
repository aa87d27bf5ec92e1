"""One optimizer for each parameter, stepped in a hook as soon as its gradient is there (saves the memory of .grad)."""

import torch
from torch import nn


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(6, 24)
        self.down = nn.Linear(24, 6)

    def forward(self, x):
        h = torch.nn.functional.gelu(self.up(x))  # plant: forward
        return x + self.down(h)


torch.manual_seed(0)
model = nn.Sequential(MLP(), MLP(), nn.Linear(6, 1))
optimizer_dict = {p: torch.optim.Adam([p], foreach=False, lr=1e-2) for p in model.parameters()}


def optimizer_hook(parameter):
    optimizer_dict[parameter].step()
    optimizer_dict[parameter].zero_grad()


for p in model.parameters():
    p.register_post_accumulate_grad_hook(optimizer_hook)

x = torch.randn(48, 6)
target = x.prod(1, keepdim=True)
for i in range(8):  # turn
    batch = x + 0.02 * torch.randn_like(x)  # plant: data
    out = model(batch)  # plant: output
    loss = nn.functional.mse_loss(out, target)  # plant: loss
    loss.backward()
    print(i, loss.item())
