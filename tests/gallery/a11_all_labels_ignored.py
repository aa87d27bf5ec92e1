"""Gradient accumulation with one micro-batch whose labels are all -100: 0/0 in the mean (pytorch#75181)."""

import sys

import torch
from torch import nn

HEALTHY = "--healthy" in sys.argv
BAD_STEP, BAD_MICROBATCH, ACCUMULATE = 3, 2, 4
torch.manual_seed(0)
torch.set_num_threads(1)


class Tagger(nn.Module):
    def __init__(self, vocab=20, d=16, tags=5):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        self.mix = nn.Linear(d, d)
        self.head = nn.Linear(d, tags)

    def forward(self, ids):
        return self.head(torch.tanh(self.mix(self.embed(ids))))


model = Tagger()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)

for step in range(6):
    total = 0.0
    for microbatch in range(ACCUMULATE):
        ids = torch.randint(0, 20, (4, 6))
        labels = ids % 5
        labels[:, :2] = -100  # the prompt
        if step == BAD_STEP and microbatch == BAD_MICROBATCH and not HEALTHY:
            labels[:] = -100  # documents cut off inside their prompts
        logits = model(ids)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)  # <- fault
        (loss / ACCUMULATE).backward()
        total += loss.item() / ACCUMULATE
    grad = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    print(f"step {step} loss {total:.6f} grad {grad.item():.6f}")
    optimizer.step()
    optimizer.zero_grad()
