"""Attention with -inf where padded; a sample that is all padding makes its softmax NaN."""

import torch
import torch.nn.functional as F
from torch import nn
from c import FAULT, finish

torch.manual_seed(0)


class Attention(nn.Module):
    def __init__(self, d=24, h=2):
        super().__init__()
        self.h, self.qkv, self.proj = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x, pad):
        B, T, D = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.h, D // self.h).permute(2, 0, 3, 1, 4)
        s = q @ k.transpose(-1, -2) / (D // self.h) ** 0.5
        low = float("-inf") if FAULT else torch.finfo(s.dtype).min  # FAULT: all keys of a sample may be masked
        s = s.masked_fill(pad[:, None, None], low)
        return x + self.proj((s.softmax(-1) @ v).transpose(1, 2).reshape(B, T, D))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.attn, self.out = (
            nn.Embedding(30, 24),
            nn.ModuleList([Attention(), Attention()]),
            nn.Linear(24, 5),
        )

    def forward(self, ids, pad):
        x = self.emb(ids)
        for a in self.attn:
            x = a(x, pad)
        return self.out(x[:, 0])


model = Net()
opt = torch.optim.AdamW(model.parameters(), 2e-3)
losses = []
for step in range(30):
    ids = torch.randint(1, 30, (8, 9))
    n = torch.randint(2, 10, (8,))
    if step == 12:
        n[3] = 0
    pad = torch.arange(9) >= n[:, None]
    loss = F.cross_entropy(model(ids.masked_fill(pad, 0), pad), ids[:, 1] % 5)
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
finish(losses, model)
