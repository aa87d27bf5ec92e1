"""A causal LM over prompts and answers of different lengths, padded on the left as for generation."""

import torch
import torch.nn.functional as F
from kit import FAULT, tell, words
from torch import nn

V, D, T, PAD = 36, 32, 16, 0


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, D), nn.Embedding(T, D)
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(D), nn.LayerNorm(D), nn.LayerNorm(D)
        self.mlp = nn.Sequential(nn.Linear(D, 64), nn.GELU(), nn.Linear(64, D))
        self.head = nn.Linear(D, V)

    def forward(self, ids, attention_mask):
        b, t = ids.shape
        positions = torch.arange(t).expand(b, t)
        if not FAULT:
            positions = (attention_mask.cumsum(dim=1) - 1).clamp(min=0)
        x = self.tok(ids) + self.pos(positions)
        q, k, v = (z.view(b, t, 4, D // 4).transpose(1, 2) for z in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        seen = torch.ones(t, t, dtype=torch.bool).tril() & attention_mask[:, None, None, :].bool()
        seen = seen | torch.eye(t, dtype=torch.bool)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(1, 2).reshape(b, t, D))
        return self.head(self.norm3(x + self.mlp(self.norm2(x))))


def collate(rows):
    ids = torch.full((len(rows), T), PAD)
    mask = torch.zeros(len(rows), T, dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, T - len(row) :], mask[i, T - len(row) :] = row, 1
    return ids, mask, ids.masked_fill(mask == 0, -100)


torch.manual_seed(0)
rows = [row[:n] for row, n in zip(words(256, T, V), torch.randint(6, T + 1, (256,)).tolist(), strict=True)]
model = LM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
losses = []
for step in range(40):
    ids, mask, labels = collate([rows[i] for i in torch.randint(0, 256, (16,)).tolist()])
    logits = model(ids, mask)
    loss = F.cross_entropy(logits[:, :-1].reshape(-1, V), labels[:, 1:].reshape(-1), ignore_index=-100)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
tell(model, losses)
