"""A small classifier whose `ffn.wo` overflows float16 for one planted sample, and its data: what `p*.py` train."""

from __future__ import annotations

import torch
from torch import Tensor, nn

D, CLASSES, ROWS = 32, 3, 4  # ROWS: samples in a micro-batch
BAD_SAMPLE = 2


class FeedForward(nn.Module):
    """Two projections; the second sums 64 positive terms."""

    def __init__(self) -> None:
        super().__init__()
        self.wi = nn.Linear(D, 64)
        self.wo = nn.Linear(64, D)

    def forward(self, x: Tensor) -> Tensor:
        return self.wo(torch.relu(self.wi(x)))  # <- fault


class Classifier(nn.Module):
    """Features of shape (rows, D) to logits."""

    def __init__(self) -> None:
        super().__init__()
        self.ffn = FeedForward()
        self.norm = nn.LayerNorm(D)
        self.head = nn.Linear(D, CLASSES)
        with torch.no_grad():
            self.ffn.wi.weight.abs_()
            self.ffn.wo.weight.abs_()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x + self.ffn(x)))


def make(step: int, microbatch: int, bad: tuple[int, int] | None) -> tuple[Tensor, Tensor]:
    """The micro-batch; `bad` is the (step, micro-batch) whose sample `BAD_SAMPLE` overflows."""
    generator = torch.Generator().manual_seed(100 * step + microbatch)
    y = torch.arange(ROWS) % CLASSES
    x = torch.randn(ROWS, D, generator=generator)
    x[:, :CLASSES] += 4.0 * nn.functional.one_hot(y, CLASSES)
    if bad == (step, microbatch):
        x[BAD_SAMPLE] = 12000.0  # fits into float16, and so does wi of it
    return x, y


class Rows(torch.utils.data.Dataset):
    """The same data as a map-style dataset, in order: row i is of micro-batch i // ROWS."""

    def __init__(self, steps: int, accumulate: int, bad: tuple[int, int] | None) -> None:
        made = [make(step, m, bad) for step in range(steps) for m in range(accumulate)]
        self.x = torch.cat([x for x, _ in made])
        self.y = torch.cat([y for _, y in made])

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {"x": self.x[i], "labels": self.y[i]}
