"""A GPT in float32 whose flags each plant one difference. Two micro-batches a step; under torchrun one on each rank."""

from __future__ import annotations

import argparse
import math
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from text_batches import VOCABULARY, batches
from torch import nn

WIDTH, N_HEADS, N_LAYERS, LENGTH, SIZE, N_MICRO = 32, 4, 2, 32, 8, 2
NOTHING = -100  # a label that the loss leaves out
SPACE = 32  # labels of words behind a space in the first half of the batch are left out: halves have unlike numbers


class Block(nn.Module):
    """Attention and a feed-forward network, each behind a norm and beside a residual."""

    is_written_out = False

    def __init__(self, eps: float, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH, eps=eps)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, t, d = x.shape
        q, k, v = (part.view(n, t, N_HEADS, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).split(d, dim=2))
        y = attention(q, k, v) if Block.is_written_out else F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.proj(y.transpose(1, 2).reshape(n, t, d)))
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)))))


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The same, rounded elsewhere."""
    t = q.shape[-2]
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return scores.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), -math.inf).softmax(-1) @ v


class Gpt(nn.Module):
    """Token and position embedding, blocks, norm, head."""

    def __init__(self, eps: float, dropout: float) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block(eps if n else 1e-5, dropout) for n in range(N_LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def arguments() -> argparse.Namespace:
    """The flags; without any it is the baseline."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--eps", type=float, default=1e-5, help="of a norm of the second block")
    parser.add_argument("--attention", choices=("fused", "written-out"), default="fused")
    parser.add_argument("--order", choices=("as-is", "later-first"), default="as-is")
    parser.add_argument("--decay-steps", type=int, default=200)
    parser.add_argument("--label-shift", type=int, default=1)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--beta2", type=float, default=0.95)
    parser.add_argument("--accumulate", choices=("mean", "sum"), default="mean")
    parser.add_argument("--loss", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--layer-seed", type=int, default=0, help="draws the second block's first matrix again")
    parser.add_argument("--gradient-factor", type=float, default=1.0, help="of the second block's up-projection")
    parser.add_argument("--all-gradients-factor", type=float, default=1.0)
    parser.add_argument("--odd-step", type=int, default=-1, help="logits of this step's batch are 1 %% larger")
    parser.add_argument("--micro-batches", type=int, default=N_MICRO)
    parser.add_argument("--mean", choices=("global", "per-rank"), default="global")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    Block.is_written_out = given.attention == "written-out"
    n_ranks, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if n_ranks > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    model: nn.Module = Gpt(given.eps, given.dropout)
    if given.layer_seed:
        torch.manual_seed(given.layer_seed)
        nn.init.normal_(model.get_submodule("blocks.1.up").weight, std=0.1)
    if n_ranks > 1:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, given.beta2), weight_decay=0.1)
    decay = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 0.1 + 0.45 * (1 + math.cos(math.pi * min(step / given.decay_steps, 1.0)))
    )
    for step, micro in enumerate(micro_batches(given)):
        n_labels = sum(int((labels != NOTHING).sum()) for _, labels in micro)
        for at, (ids, labels) in enumerate(micro):
            if at % n_ranks != rank:
                continue
            logits = model(ids).to(getattr(torch, given.loss)).flatten(0, 1)
            logits = logits * 1.01 if step == given.odd_step else logits
            total = F.cross_entropy(logits, labels.flatten(), reduction="sum")
            own = int((labels != NOTHING).sum())
            if n_ranks > 1:
                loss = total / own if given.mean == "per-rank" else total * n_ranks / n_labels
            else:
                loss = total / n_labels * (1 if given.accumulate == "mean" else given.micro_batches)
            loss.backward()
        for name, parameter in model.named_parameters():
            parameter.grad.mul_(given.gradient_factor if name == "blocks.1.up.weight" else given.all_gradients_factor)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        decay.step()
        optimizer.zero_grad()
    if n_ranks > 1:
        dist.destroy_process_group()


def micro_batches(given: argparse.Namespace):
    """Lists of (tokens, labels), one for each step; in the first half of a batch some labels are left out."""
    made = list(batches(given.steps, size=SIZE * N_MICRO, length=LENGTH + 1))
    if given.order == "later-first":
        made = made[1:] + made[:1]
    for ids, following in made:
        whole = torch.cat((ids, following[:, -1:]), dim=1)
        labels = whole[:, given.label_shift : given.label_shift + LENGTH].clone()
        left_out = (ids[:, :LENGTH] == SPACE).cumsum(1) % 2 == 1
        left_out[SIZE:] = False
        labels[left_out] = NOTHING
        yield list(zip(*(part.chunk(given.micro_batches) for part in (ids[:, :LENGTH], labels)), strict=True))


if __name__ == "__main__":
    main()
