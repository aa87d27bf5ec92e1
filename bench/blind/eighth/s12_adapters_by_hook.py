"""Adapters on a frozen transformer, put in by hooks: one of low rank beside each block's feed-forward net."""

import torch
from kit import FAULT, metric, tell, words
from torch import nn

torch.manual_seed(112)
VOCABULARY, WIDTH, DEPTH = 24, 32, 3


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))

    def forward(self, x, mask):
        h = self.norm1(x)
        x = x + self.attention(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.feed(self.norm2(x))


class LowRank(nn.Module):
    def __init__(self, rank=4, alpha=8):
        super().__init__()
        self.down, self.up = nn.Linear(WIDTH, rank, bias=False), nn.Linear(rank, WIDTH, bias=False)
        self.scale = alpha / rank
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.scale * self.up(self.down(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x)


def add_adapters(model):
    model.requires_grad_(False)
    model.adapters = nn.ModuleList(LowRank() for _ in model.blocks)
    for i, block in enumerate(model.blocks):
        if FAULT:
            block.feed.register_forward_hook(lambda _m, args, out: out + model.adapters[i](args[0]))
        else:
            block.feed.register_forward_hook(lambda _m, args, out, i=i: out + model.adapters[i](args[0]))
    model.head.requires_grad_(True)
    return model


model = add_adapters(Model())
data = words(640, 13, VOCABULARY, seed=12)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2, weight_decay=0.0)
losses = []
for step in range(60):
    tokens = data[torch.randint(0, len(data), (16,))]
    logits = model(tokens[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())

metric("loss", torch.stack(losses[-10:]).mean())
tell(model, losses)
