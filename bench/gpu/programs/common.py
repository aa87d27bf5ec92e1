"""What the programs beside this share; each prints its losses to the bit."""

import os
import torch
from torch import nn
from torch.nn import functional as F

D = os.environ.get("DEVICE", "cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self, w=128, h=4):
        super().__init__()
        self.h = h
        self.n1, self.qkv, self.out = nn.LayerNorm(w), nn.Linear(w, 3 * w), nn.Linear(w, w)
        self.n2, self.up, self.down = nn.LayerNorm(w), nn.Linear(w, 4 * w), nn.Linear(4 * w, w)

    def forward(self, x):
        n, t, w = x.shape
        q, k, v = (e.view(n, t, self.h, -1).transpose(1, 2) for e in self.qkv(self.n1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, dropout_p=(0.0 if D == "cpu" else 0.1) if self.training else 0.0
        )
        x = x + self.out(y.transpose(1, 2).reshape(n, t, w))
        return x + F.dropout(self.down(F.gelu(self.up(self.n2(x)))), 0.1, self.training)


class GPT(nn.Module):
    def __init__(self, v=512, w=128, n=4, h=4, T=64):
        super().__init__()
        self.emb, self.pos = nn.Embedding(v, w), nn.Parameter(0.02 * torch.randn(T, w))
        self.blocks, self.norm, self.head = (
            nn.ModuleList([Block(w, h) for _ in range(n)]),
            nn.LayerNorm(w),
            nn.Linear(w, v, bias=False),
        )
        self.head.weight = self.emb.weight
        nn.init.normal_(self.emb.weight, std=0.02)

    def forward(self, ids):
        x = self.emb(ids) + self.pos[: ids.shape[1]]
        for b in self.blocks:
            x = b(x)
        return self.head(self.norm(x))


gen = torch.Generator().manual_seed(1)


def tokens(n=8, t=64, v=512):
    start = torch.randint(0, v, (n, 1), generator=gen)
    return ((start + 7 * torch.arange(t)) % v).to(D)


def lm_loss(logits, ids):
    return F.cross_entropy(logits[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten())


def images(n=16, c=3, s=32):
    y = torch.randint(0, 10, (n,), generator=gen)
    x = torch.randn(n, c, s, s, generator=gen) + y.view(-1, 1, 1, 1) * 0.3
    return x.to(D), y.to(D)


def said(step, loss):
    print("loss", step, float(loss.detach()).hex(), flush=True)


def done(model):
    print("weights", sum(float(p.detach().double().abs().sum()) for p in model.parameters()).hex(), flush=True)
