"""A language model with a second head that predicts the token after the next; it joins once the trunk has settled."""

import torch
from kit import FAULT, metric, tell, words
from torch import nn

torch.manual_seed(115)
VOCABULARY, WIDTH = 28, 32


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        h = self.norm1(x)
        x = x + self.attention(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.feed(self.norm2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.trunk = nn.Sequential(Block(), Block())
        self.norm = nn.LayerNorm(WIDTH)
        self.merge = nn.Linear(2 * WIDTH, WIDTH)
        self.further = Block()
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight
        nn.init.normal_(self.embed.weight, std=0.1)

    def forward(self, tokens, two):
        """Logits of the next token and, with two, those of the one after it, from the state and the next token."""
        n = tokens.shape[1] - 2
        h = self.trunk(self.embed(tokens[:, :n]))
        first = self.head(self.norm(h))
        if not two:
            return first, None
        ahead = tokens[:, 2 : n + 2] if FAULT else tokens[:, 1 : n + 1]
        merged = self.merge(torch.cat([self.norm(h), self.embed(ahead)], dim=-1))
        return first, self.head(self.norm(self.further(merged)))


data = words(800, 16, VOCABULARY, seed=15)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
losses, seconds = [], []
for step in range(60):
    tokens = data[torch.randint(0, len(data), (16,))]
    first, second = model(tokens, two=step >= 30)
    n = first.shape[1]
    loss = nn.functional.cross_entropy(first.flatten(0, 1), tokens[:, 1 : n + 1].flatten())
    if second is not None:
        extra = nn.functional.cross_entropy(second.flatten(0, 1), tokens[:, 2 : n + 2].flatten())
        seconds.append(extra.detach())
        loss = loss + 0.3 * extra
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    losses.append(loss.detach())

metric("second", torch.stack(seconds[-5:]).mean())
tell(model, losses)
