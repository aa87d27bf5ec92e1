"""A 6-layer GPT in bfloat16 whose sums can be formed in two halves, as by tensor parallelism; a layer may be wrong."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

import hypocenter

WIDTH, N_LAYERS, VOCABULARY = 64, 6, 64


class Projection(nn.Linear):
    """The linear layer at the end of attention and feed-forward network: row-parallel in other software."""

    halves = False
    scale = 1.0
    gradient_scale = 1.0

    def forward(self, x):
        if self.halves:
            n = x.shape[-1] // 2
            y = F.linear(x[..., :n], self.weight[:, :n]) + F.linear(x[..., n:], self.weight[:, n:], self.bias)
        else:
            y = F.linear(x, self.weight, self.bias)
        y = y * self.scale if self.scale != 1.0 else y
        return Turned.apply(y, self.gradient_scale) if self.gradient_scale != 1.0 else y


class Turned(torch.autograd.Function):
    """Scales a gradient."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.factor, None


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), Projection(WIDTH, WIDTH)
        self.up, self.act, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), Projection(4 * WIDTH, WIDTH)

    def forward(self, x, *, causal=False):
        n, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(n, t, 3, 4, d // 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        x = x + self.proj(y.transpose(1, 2).reshape(n, t, d))
        return x + self.down(self.act(self.up(self.ln2(x))))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(N_LAYERS))
        self.ln, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids):
        x = self.emb(ids)
        for block in self.blocks:
            x = block(x, causal=True)
        return self.head(self.ln(x))


def build(*, halves=False, dtype=torch.bfloat16):
    """The same weights every time."""
    torch.manual_seed(0)
    model = Gpt().to(dtype)
    for module in model.modules():
        if isinstance(module, Projection):
            module.halves = halves
    return model


def record(out, model, level="tensors"):
    """One step of training, recorded."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    ids = torch.randint(0, VOCABULARY, (2, 17), generator=torch.Generator().manual_seed(1))
    settings = {"level": level, "sketch": True, "param_schedule": "every=1", "replay": False}
    with hypocenter.watch(model, optimizer, out=str(out), **settings):
        logits = model(ids[:, :-1])
        F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    optimizer.zero_grad()
    return out
