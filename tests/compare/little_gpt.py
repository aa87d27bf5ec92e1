"""A GPT of four blocks with what makes blame hard: tied and shared modules, in-place activations, micro-batches.

`record(out, **planted)` trains it for a few steps under Hypocenter; each keyword plants one difference.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import hypocenter

VOCABULARY, WIDTH, N_BLOCKS = 64, 32, 4


@dataclass(frozen=True, kw_only=True)
class Planted:
    """What is different from the good program."""

    eps: float = 1e-5  # of blocks.2.ln2
    attention_scale: float | None = None  # of blocks.1
    wide_mask: bool = False  # blocks.1 sees one token of the future
    square: float = 1.0  # blocks.2 multiplies the hidden values by it, in its own code
    residual: float = 1.0  # blocks.3 multiplies its branch by it
    shared_code: float = 1.0  # the model multiplies the second output of `shared` by it
    short_projection: bool = False  # blocks.1.proj computes in bfloat16
    bad_backward: float = 1.0  # the gradient of the input of blocks.2.ln2 is multiplied by it
    bad_gate: float = 1.0  # the gradient of one of the two uses of the input of blocks.1's `up`
    bad_sum: float = 1.0  # the gradient of the sum that blocks.1 returns is multiplied by it
    bad_weight_grad: float = 1.0  # the gradient of blocks.1.down.weight is multiplied by it
    initial: bool = False  # blocks.2.up.weight has other values
    decay: float = 0.0  # weight decay of biases and norms
    lr: float = 1e-3
    adam_eps: float = 1e-8
    beta2: float = 0.999
    data_seed: int = 1
    shift: bool = True  # labels are the next token
    accumulate: int = 2  # the loss is divided by it
    clip: float = 1.0
    dropout: float = 0.0
    seed: int = 7
    dtype: torch.dtype = torch.float32
    n_threads: int = 1
    steps: int = 2
    first_step: int = 0
    nan: bool = False  # one element of the embedding of the last token is NaN
    sketch: bool = True
    calibrate: str = "never"


class Block(nn.Module):
    """Attention and a feed-forward network, both with residual."""

    def __init__(self, number: int, planted: Planted) -> None:
        super().__init__()
        self.number, self.planted = number, planted
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH, eps=planted.eps if number == 2 else 1e-5)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.act, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(inplace=True), nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(planted.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        planted = self.planted
        n, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(n, t, 3, 4, d // 4).permute(2, 0, 3, 1, 4)
        mask = torch.ones(t, t).tril(1 if planted.wide_mask and self.number == 1 else 0).bool()
        scale = planted.attention_scale if self.number == 1 else None
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
        x = x + self.proj(y.transpose(1, 2).reshape(n, t, d))
        y = self.ln2(_times_gradient(x, planted.bad_backward) if self.number == 2 else x)
        h = self.act(self.up(y) + (_times_gradient(y, planted.bad_gate) if self.number == 1 else y).mean())
        h = h * planted.square if self.number == 2 and planted.square != 1.0 else h
        branch = self.drop(self.down(h))
        x = x + (branch * planted.residual if self.number == 3 and planted.residual != 1.0 else branch)
        return _times_gradient(x, planted.bad_sum) if self.number == 1 else x


class Gpt(nn.Module):
    """Embedding, a linear layer, blocks, the same linear layer again, norm, and a head tied to the embedding."""

    def __init__(self, planted: Planted) -> None:
        super().__init__()
        self.planted = planted
        self.emb = nn.Embedding(VOCABULARY, WIDTH)
        self.shared = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block(number, planted) for number in range(N_BLOCKS))
        self.ln = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.shared(self.emb(ids))
        for block in self.blocks:
            x = block(x)
        x = self.shared(x)
        x = x * self.planted.shared_code if self.planted.shared_code != 1.0 else x
        return self.head(self.ln(x))


class _Times(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.factor, None


def _times_gradient(x: torch.Tensor, factor: float) -> torch.Tensor:
    return _Times.apply(x, factor) if factor != 1.0 else x


def record(out: Path, planted: Planted | None = None, **differences) -> Path:
    """Train and record; gives `out`."""
    planted = replace(planted or Planted(), **differences)
    threads = torch.get_num_threads()
    torch.set_num_threads(planted.n_threads)
    try:
        _train(out, planted)
    finally:
        torch.set_num_threads(threads)
    return out


def _train(out: Path, planted: Planted) -> None:
    torch.manual_seed(0)
    model = Gpt(planted).to(planted.dtype)
    _plant(model, planted)
    torch.manual_seed(planted.seed)
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
            {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": planted.decay},
        ],
        lr=planted.lr, eps=planted.adam_eps, betas=(0.9, planted.beta2),
    )  # fmt: skip
    options = {"level": "modules", "sketch": planted.sketch, "param_schedule": "every=1", "replay": False}
    options["calibrate"] = planted.calibrate
    tokens = torch.Generator().manual_seed(planted.data_seed)
    with hypocenter.watch(model, optimizer, out=out, **options):
        for _ in range(planted.steps):
            for _ in range(2):
                ids = torch.randint(0, VOCABULARY, (2, 17), generator=tokens)
                targets = ids[:, 1:] if planted.shift else ids[:, :-1]
                logits = model(ids[:, :-1])
                loss = F.cross_entropy(logits.float().reshape(-1, VOCABULARY), targets.reshape(-1))
                (loss / planted.accumulate).backward()
            nn.utils.clip_grad_norm_(model.parameters(), planted.clip)
            optimizer.step()
            optimizer.zero_grad()


def _plant(model: Gpt, planted: Planted) -> None:
    with torch.no_grad():
        if planted.initial:
            model.blocks[2].up.weight.normal_(0, 0.02)
        if planted.nan:
            model.emb.weight[-1, 0] = float("nan")
    if planted.short_projection:
        layer = model.blocks[1].proj
        layer.forward = lambda x: F.linear(x.bfloat16(), layer.weight.bfloat16(), layer.bias.bfloat16()).float()
    if planted.bad_weight_grad != 1.0:
        weight = model.blocks[1].down.weight
        weight.register_hook(lambda grad: grad * planted.bad_weight_grad)
