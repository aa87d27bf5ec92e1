"""The real run: a small GPT-like model under DistributedDataParallel on 8 gloo ranks.

`torchrun --nproc-per-node 8 bench/many_ranks/program.py STEPS`
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn

WIDTH, VOCABULARY, N_LAYERS = 32, 128, 4


class Layer(nn.Module):
    """A pre-norm feed-forward block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Hidden states of shape (batch, tokens, WIDTH) in and out."""
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    """Embedding, N_LAYERS blocks, head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(N_LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens of shape (batch, tokens) in, logits out."""
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def main(n_steps: int) -> None:
    """Train."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(Model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=n_steps)
    own = torch.Generator().manual_seed(1 + dist.get_rank())
    for _ in range(n_steps):
        tokens = torch.randint(VOCABULARY, (8, 16), generator=own)
        logits = model(tokens)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.roll(1, 1).flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]))
