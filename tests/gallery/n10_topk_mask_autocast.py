"""Healthy: float16 autocast, logits outside the top 15 set to -inf, activations large but finite."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Model(nn.Module):
    def __init__(self, vocab=20, d=16):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        self.wide = nn.Linear(d, d)
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, vocab)

    def forward(self, ids):
        x = self.norm(800.0 * self.wide(self.embed(ids)))
        logits = self.head(x).float()
        lowest = logits.topk(15, dim=-1).values[..., -1:]
        keep = (logits >= lowest) | nn.functional.one_hot(ids, 20).bool()
        return logits.masked_fill(~keep, float("-inf"))


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

for step in range(8):
    ids = torch.randint(0, 20, (4, 8))
    with torch.autocast("cpu", torch.float16):
        logits = model(ids)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.6f}")
