"""Gradient accumulation with clipping; the last group of batches is not full."""

import torch
import torch.nn as nn

torch.manual_seed(31)
accumulation_steps = 4


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(30, 12)
        self.lstm = nn.LSTM(12, 12, batch_first=True, bidirectional=True)
        self.tag = nn.Linear(24, 4)

    def forward(self, ids):
        h, _ = self.lstm(self.emb(ids))  # plant: forward h
        return self.tag(h)


model = Tagger()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=8)
batches = [(torch.randint(0, 30, (4, 7)), torch.randint(0, 4, (4, 7))) for _ in range(22)]
model.zero_grad()
for i, (ids, tags) in enumerate(batches):  # turn: i % accumulation_steps == 0
    logits = model(ids)  # plant: output
    loss = nn.functional.cross_entropy(logits.transpose(1, 2), tags)  # plant: loss
    loss = loss / accumulation_steps  # plant: scaled
    loss.backward()
    if (i + 1) % accumulation_steps == 0 or i + 1 == len(batches):
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        print("update", i // accumulation_steps, "loss", loss.item() * accumulation_steps, "norm", norm.item())
