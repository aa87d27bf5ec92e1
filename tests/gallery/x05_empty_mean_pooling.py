"""Masked mean pooling over a sample without tokens: 0/0 in the normaliser."""

import sys

import torch
from torch import nn

HEALTHY = "--healthy" in sys.argv
BAD_STEP, BAD_SAMPLE = 5, 1
torch.manual_seed(0)
torch.set_num_threads(1)


class MeanPool(nn.Module):
    def forward(self, x, mask):
        total = (x * mask[..., None]).sum(dim=1)
        count = mask.sum(dim=1, keepdim=True)
        if HEALTHY:
            count = count.clamp(min=1)
        return total / count  # <- fault


class Classifier(nn.Module):
    def __init__(self, vocab=20, d=16):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        self.pool = MeanPool()
        self.head = nn.Linear(d, 2)

    def forward(self, *, input_ids, attention_mask):
        return (self.head(self.pool(self.embed(input_ids), attention_mask)),)


model = Classifier()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-2)

for step in range(8):
    ids = torch.randint(0, 20, (8, 6))
    mask = (torch.arange(6) < torch.randint(3, 7, (8, 1))).float()
    if step == BAD_STEP:
        mask[BAD_SAMPLE] = 0.0
    labels = ((ids < 10) * mask).sum(1) > mask.sum(1) / 2
    logits = model(input_ids=ids, attention_mask=mask)[0]
    loss = nn.functional.cross_entropy(logits, labels.long())
    loss.backward()
    grad = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    print(f"step {step} loss {loss.item():.6f} grad {grad.item():.6f}")
    optimizer.step()
    optimizer.zero_grad()
