"""The candidate: the same GPT written anew by somebody else, with two mistakes that flags take back.

Attention is three products and a softmax, GELU and the loss are written out: right, but rounded elsewhere.
"""

from __future__ import annotations

import argparse
import math

import torch
from text_batches import VOCABULARY, batches
from torch import nn

WIDTH, N_HEADS, N_LAYERS, LENGTH, SIZE = 32, 4, 2, 64, 64


class Embedding(nn.Embedding):
    """Looks up rows in `dtype`; with float32 its gradient is added up in float32."""

    dtype = torch.bfloat16

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return nn.functional.embedding(ids, self.weight.to(self.dtype))


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("future", torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, t, d = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, N_HEADS, d // N_HEADS).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2)).float() / math.sqrt(d // N_HEADS)
        weights = scores.masked_fill(self.future[:t, :t], -math.inf).softmax(-1).to(v.dtype)
        return self.proj((weights @ v).transpose(1, 2).reshape(n, t, d))


class Block(nn.Module):
    """Attention and a feed-forward network, each behind a norm and beside a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        h = self.up(self.norm2(x)).float()
        return x + self.down((0.5 * h * (1 + torch.erf(h / math.sqrt(2)))).bfloat16())


class Gpt(nn.Module):
    """Token and position embedding, blocks, norm, head."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = Embedding(VOCABULARY, WIDTH), Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(N_LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        for weight in (self.tokens.weight, self.positions.weight):
            nn.init.normal_(weight, std=0.02)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = (self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))).bfloat16()
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def groups(model: nn.Module, decay: str) -> list[dict[str, object]]:
    """One group for all, or one without decay for biases and one-dimensional weights."""
    if decay == "all":
        return [{"params": list(model.parameters()), "weight_decay": 0.1}]
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim == 1]
    return [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--embedding", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--decay", choices=("all", "matrices"), default="matrices")
    given = parser.parse_args()
    torch.manual_seed(0)
    Embedding.dtype = getattr(torch, given.embedding)
    model = Gpt()
    optimizer = torch.optim.AdamW(groups(model, given.decay), lr=1e-3, betas=(0.9, 0.95))
    for step, (ids, targets) in enumerate(batches(given.steps, size=SIZE, length=LENGTH)):
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(ids)
        chosen = logits.float().log_softmax(-1).gather(-1, targets[..., None])
        loss = -chosen.mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
