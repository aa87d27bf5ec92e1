"""float16 autocast without a loss scale: the gradients of the first layers are below 2^-25 and become zero."""

import sys

import torch
from torch import nn

HEALTHY = "--healthy" in sys.argv
BAD_STEP = 12  # from here on the loss is divided by the 32,768 tokens of the global batch
torch.manual_seed(0)
torch.set_num_threads(1)


class Deep(nn.Module):
    def __init__(self, d=16, depth=4, k=3):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(d, d) for _ in range(depth)])
        for layer in self.layers:
            nn.init.xavier_uniform_(layer.weight, gain=3.0)
        self.head = nn.Linear(d, k)

    def forward(self, x):
        for layer in self.layers:
            x = torch.sigmoid(layer(x))
        return self.head(x)


model = Deep()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=65536.0, enabled=HEALTHY)
labels = torch.arange(48) % 3
inputs = 2.0 * torch.eye(3, 16)[labels]

for step in range(20):
    with torch.autocast("cpu", torch.float16):
        loss = nn.functional.cross_entropy(model(inputs + 0.1 * torch.randn(48, 16)).float(), labels)
    n_tokens = 32768.0 if step >= BAD_STEP else 1.0
    scaler.scale(loss / n_tokens).backward()  # <- fault
    scale = scaler.get_scale()
    grads = {name: p.grad / scale for name, p in model.named_parameters()}
    dead = sum(not bool(g.any()) for g in grads.values())
    print(f"step {step} loss {loss.item():.6f} grad {torch.nn.utils.get_total_norm(grads.values()).item():.9f}")
    print(f"step {step} zero {dead}")
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
