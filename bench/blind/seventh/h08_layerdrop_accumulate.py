"""Stochastic depth, tied embeddings, and accumulation over groups of unequal size, weighed by tokens: all of it right."""

import torch
from kit import metric, tell, words
from torch import nn

torch.manual_seed(403)
VOCABULARY = 32
data = words(728, 13, VOCABULARY, seed=43)
g = torch.Generator().manual_seed(3)
data = data.masked_fill(torch.arange(13)[None] >= torch.randint(6, 14, (728,), generator=g)[:, None], 0)


class Block(nn.Module):
    def __init__(self, width, keep):
        super().__init__()
        self.keep = keep
        self.norm = nn.LayerNorm(width)
        self.mix = nn.GRU(width, width, batch_first=True)

    def forward(self, h):
        if not self.training:
            return h + self.mix(self.norm(h))[0]
        if torch.rand(()) > self.keep:
            return h
        return h + self.mix(self.norm(h))[0] / self.keep


class Model(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width, padding_idx=0)
        self.blocks = nn.ModuleList([Block(width, 1.0), Block(width, 0.7), Block(width, 0.5)])
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        h = self.embed(tokens)
        for block in self.blocks:
            h = block(h)
        return self.head(h)


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
loader = torch.utils.data.DataLoader(data[:664], batch_size=8, shuffle=True)  # 83 micro-batches: the last group has 3
losses = []
for epoch in range(2):
    batches = list(loader)
    for start in range(0, len(batches), 4):
        group = batches[start : start + 4]
        count = sum(int((b[:, 1:] != 0).sum()) for b in group)
        total = 0.0
        optimizer.zero_grad()
        for b in group:
            logits = model(b[:, :-1]).transpose(1, 2)
            loss = nn.functional.cross_entropy(logits, b[:, 1:], ignore_index=0, reduction="sum") / count
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(total)
model.eval()
with torch.no_grad():
    held = data[664:]
    metric(
        "heldout_loss", nn.functional.cross_entropy(model(held[:, :-1]).transpose(1, 2), held[:, 1:], ignore_index=0)
    )
tell(model, losses)
