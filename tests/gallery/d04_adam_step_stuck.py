"""Adam's step counter in bfloat16 stays at 256: the format has no 257 (pytorch/ao#4915, pytorch#74424)."""

import sys

import torch
from torch import nn

HEALTHY = "--healthy" in sys.argv
LAST = 256  # the largest count that bfloat16 can add 1 to and that changes: the update of step 256 leaves it
torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Linear(8, 24), nn.GELU(), nn.Linear(24, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
centers = torch.randn(3, 8)

for step in range(LAST + 8):
    labels = torch.arange(24) % 3
    loss = nn.functional.cross_entropy(model(centers[labels] + torch.randn(24, 8)), labels)
    loss.backward()
    grad = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    optimizer.step()
    optimizer.zero_grad()
    if step == 0 and not HEALTHY:
        for state in optimizer.state.values():  # as a helper does that casts what is small, to save memory
            state["step"] = state["step"].bfloat16()  # <- fault
    print(f"step {step} loss {loss.item():.6f} grad {grad.item():.6f}")
    print(f"step {step} counter {float(optimizer.state[model[0].weight]['step']):.0f}")
