"""A small GPT with one fault planted: the programs on which msprobe's dumps and answers are looked at."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

HEADS, WORDS, LENGTH = 2, 50, 16


class Attention(nn.Module):
    """Causal; the mask is additive -inf where the case wants it, else that of the kernel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.is_masked_by_hand = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, HEADS, width // HEADS).transpose(1, 2) for part in self.qkv(x).split(width, 2)
        )
        if self.is_masked_by_hand:
            scores = (q @ k.transpose(-2, -1)) * (width // HEADS) ** -0.5
            future = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)
            y = F.softmax(scores.masked_fill(future, float("-inf")), -1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(batch, length, width))


class MLP(nn.Module):
    """`fault` is "", "cast" (its middle does not fit float16) or "bf16" (all of it in bfloat16)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        self.fault = ""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fault == "cast":
            return self.fc2(self.act((self.fc1(x) * 3e6).half().float()))
        if self.fault == "bf16":
            return self._in_bfloat16(x)
        return self.fc2(self.act(self.fc1(x)))

    def _in_bfloat16(self, x: torch.Tensor) -> torch.Tensor:
        w1, b1, w2, b2 = (p.bfloat16() for p in self.parameters())
        return F.linear(F.gelu(F.linear(x.bfloat16(), w1, b1)), w2, b2).float()


class Adapted(nn.Module):
    """A linear layer with a low-rank part beside it that starts at zero."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner, self.down = inner, nn.Linear(inner.in_features, 2, bias=False)
        self.up = nn.Linear(2, inner.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + self.up(self.down(x))


class Block(nn.Module):
    """Attention and MLP, each behind a norm and beside a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln1, self.attn, self.ln2, self.mlp = nn.LayerNorm(width), Attention(width), nn.LayerNorm(width), MLP(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    """Tokens, and a tensor of numbers that is put in through `inp`."""

    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.tok, self.pos, self.inp = nn.Embedding(WORDS, width), nn.Embedding(LENGTH, width), nn.Linear(width, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.lnf, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS, bias=False)

    def forward(self, ids: torch.Tensor, extra: torch.Tensor) -> torch.Tensor:
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1])) + self.inp(extra)
        for block in self.blocks:
            x = block(x)
        return self.head(self.lnf(x))
