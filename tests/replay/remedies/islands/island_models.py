"""Small models to put islands into, and what they compute."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Attention(nn.Module):
    """Enough of one: two projections, statistics in a buffer, a keyword, a mask, a scalar beside the result."""

    def __init__(self, width):
        super().__init__()
        self.qkv = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)
        self.proj = nn.Linear(width, width)

    def forward(self, x, *, mask=None, more=None):
        h = self.norm(self.qkv(x))
        if mask is not None:
            h = h.masked_fill(mask, 0)
        if more is not None:
            h = h * more["gain"][0]
        return self.proj(h), h.sum()


class Model(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.blocks = nn.ModuleList([Attention(width), Attention(width)])
        self.last = nn.Linear(width, width)

    def forward(self, x):
        h = self.first(x)
        mask = torch.zeros(h.shape, dtype=torch.bool)
        for block in self.blocks:
            out, total = block(h, mask=mask, more={"gain": [h]})
            h = h + out
        return self.last(h), total


class Wrapped(nn.Module):
    """Runs one module under activation checkpointing."""

    def __init__(self, inner, reentrant):
        super().__init__()
        self.inner, self.reentrant = inner, reentrant

    def forward(self, *args):
        return checkpoint(self.inner, *args, use_reentrant=self.reentrant)


def built(dtype=None, seed=0):
    torch.manual_seed(seed)
    model = Model()
    return model if dtype is None else model.to(dtype)


def ran(model, x, autocast=torch.float16):
    """Output, scalar, gradients, buffers."""
    with torch.autocast("cpu", autocast or torch.float16, enabled=autocast is not None):
        out, total = model(x)
    (out.float().sum() + total).backward()
    grads = {name.replace("_orig_mod.", ""): p.grad for name, p in model.named_parameters()}
    return out.detach(), total.detach(), grads, {n.replace("_orig_mod.", ""): b for n, b in model.named_buffers()}


def equal(a, b):
    return all(
        torch.equal(x[k], y[k]) if isinstance(x, dict) else torch.equal(x, y)
        for x, y in zip(a, b, strict=True)
        for k in (x if isinstance(x, dict) else [0])
    )
