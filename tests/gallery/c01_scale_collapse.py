"""A norm at exactly zero makes NaN gradients at every loss scale: the scaler halves it for ever (apex#834)."""

import sys

import torch
from torch import nn

HEALTHY = "--healthy" in sys.argv
BAD_STEP = 10  # from here on the mask leaves out all tokens of one sequence
torch.manual_seed(0)
torch.set_num_threads(1)


class Pooled(nn.Module):
    def __init__(self, d=12, k=3):
        super().__init__()
        self.embed = nn.Linear(d, 16)
        self.mix = nn.Linear(16, 16)
        self.head = nn.Linear(16, k)

    def forward(self, tokens, mask):
        h = torch.tanh(self.mix(torch.tanh(self.embed(tokens))))
        pooled = (h * mask[..., None]).sum(1).float()
        eps = 1e-12 if HEALTHY else 0.0
        norm = torch.sqrt(pooled.pow(2).sum(-1, keepdim=True) + eps)  # <- fault
        return self.head(pooled / (norm + 1e-6))


model = Pooled()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
centers = torch.randn(3, 12)
applied = 0

for step in range(60):
    labels = torch.arange(12) % 3
    mask = torch.ones(12, 5)
    if step >= BAD_STEP:
        mask[7] = 0.0
    with torch.autocast("cpu", torch.float16):
        logits = model(centers[labels][:, None] + 0.3 * torch.randn(12, 5, 12), mask)
        loss = nn.functional.cross_entropy(logits.float(), labels)
    scaler.scale(loss).backward()
    grad = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]) / scaler.get_scale()
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    applied += scaler.get_scale() >= before
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.6f} grad {grad.item():.6f}")
print(f"scale {scaler.get_scale():.2g}, {applied} updates applied")
