"""Gains of 1.0 in bfloat16 and updates of 6e-4: below half of a step of the format, nothing moves (pytorch#120376)."""

import sys

import torch
from torch import nn

HEALTHY = "--healthy" in sys.argv
BAD_STEP = 8  # from here on the model is kept in bfloat16, to save memory
LR = 6e-4
torch.manual_seed(0)
torch.set_num_threads(1)


class Probe(nn.Module):
    """A frozen body; only the gains of its two norms are tuned."""

    def __init__(self, d=8):
        super().__init__()
        self.norm1, self.mix, self.norm2, self.head = nn.RMSNorm(d), nn.Linear(d, d), nn.RMSNorm(d), nn.Linear(d, 3)
        self.mix.requires_grad_(False)
        self.head.requires_grad_(False)

    def forward(self, x):
        return self.head(self.norm2(torch.tanh(self.mix(self.norm1(x)))))


def step_with_masters():
    """What mixed-precision training does: float32 weights are updated, the model holds a bfloat16 copy of them."""
    for master, copy in zip(masters, gains, strict=True):
        master.grad = copy.grad.float()
    optimizer.step()
    with torch.no_grad():
        for master, copy in zip(masters, gains, strict=True):
            copy.copy_(master)


model = Probe()
gains = [model.norm1.weight, model.norm2.weight]
masters = None
optimizer = torch.optim.AdamW(gains, lr=LR, weight_decay=0.0)
labels = torch.arange(48) % 3
x = 2.0 * torch.randn(3, 8)[labels] + torch.randn(48, 8)
start = [gain.detach().clone() for gain in gains]

for step in range(32):
    if step == BAD_STEP:
        if HEALTHY:
            masters = [gain.detach().clone().requires_grad_() for gain in gains]
        model.bfloat16()
        start = [gain.detach().clone() for gain in gains]
        x = x.bfloat16()
        optimizer.state.clear()
        optimizer.param_groups[0]["params"] = masters or gains  # <- fault
    loss = nn.functional.cross_entropy(model(x).float(), labels)
    loss.backward()
    grad = torch.nn.utils.get_total_norm([gain.grad for gain in gains])
    step_with_masters() if masters else optimizer.step()
    model.zero_grad()
    n_moved = sum(int((now != then).sum()) for now, then in zip(gains, start, strict=True))
    print(f"step {step} loss {loss.item():.6f} grad {grad.item():.6f}")
    print(f"step {step} moved {n_moved}")
