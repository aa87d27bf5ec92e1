"""Sequences grow in mid-run, and from then on activations are recomputed to save memory."""

import torch
from kit import FAULT, metric, tell, words
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(15)
VOCAB, WIDTH = 32, 32
data = words(512, 25, VOCAB, seed=15)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Dropout(0.2), nn.Linear(64, WIDTH))

    def forward(self, x, mask):
        h = self.norm1(x)
        x = x + self.attn(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.place = nn.Parameter(0.1 * torch.randn(24, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, tokens, recompute=False):
        length = tokens.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool).triu(1)
        x = self.embed(tokens) + self.place[:length]
        for block in self.blocks:
            if recompute:
                x = checkpoint(block, x, mask, use_reentrant=False, preserve_rng_state=not FAULT)
            else:
                x = block(x, mask)
        return self.head(x)


def loss_of(model, tokens, recompute=False):
    out = model(tokens[:, :-1], recompute)
    return nn.functional.cross_entropy(out.flatten(0, 1), tokens[:, 1:].flatten())


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
losses = []
for step in range(50):
    length = 13 if step < 20 else 25
    tokens = data[torch.randint(448, (16,)), :length]
    loss = loss_of(model, tokens, recompute=length > 16)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
model.eval()
with torch.no_grad():
    metric("loss", loss_of(model, data[448:]))
tell(model, losses)
