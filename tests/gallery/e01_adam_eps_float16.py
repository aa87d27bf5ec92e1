"""Adam with eps = 1e-8 on float16 parameters: eps rounds to 0, a zero gradient gives 0/0 (optax#1754)."""

import sys

import torch
from torch import nn

HEALTHY = "--healthy" in sys.argv
BAD_STEP = 4  # the embedding is unfrozen here; the tokens that a batch lacks have gradients of exactly 0
torch.manual_seed(0)
torch.set_num_threads(1)


class Tagger(nn.Module):
    def __init__(self, vocab=24, d=8, tags=3):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        self.mix = nn.Linear(d, d)
        self.head = nn.Linear(d, tags)

    def forward(self, ids):
        return self.head(torch.tanh(self.mix(self.embed(ids))))


model = Tagger().half()
model.embed.requires_grad_(False)
eps = 1e-4 if HEALTHY else 1e-8
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, betas=(0.9, 0.95), eps=eps)  # <- fault

for step in range(7):
    if step == BAD_STEP:
        model.embed.requires_grad_(True)
    ids = torch.randint(0, 24, (8, 8))
    loss = nn.functional.cross_entropy(model(ids).float().flatten(0, 1), (ids % 3).flatten(), reduction="sum")
    (16.0 * loss).backward()  # Adam does not care; small squares would not fit into float16
    grad = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    print(f"step {step} loss {loss.item():.6f} grad {grad.item():.6f}")
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} bad-params {sum(not p.isfinite().all() for p in model.parameters())}")
