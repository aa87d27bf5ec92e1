"""What the programs share: samples, a model, and what can be wrong with either.

Words: pool, alias, region (faults that torch 2.13 has, compiled), counted (state in Python, compiled), decomposition,
lowering (planted in Inductor), copied and numbered (a dataset in workers), unequal (labels that do not count).
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

WORDS = set(sys.argv[1:])


class Samples(Dataset[dict[str, Tensor]]):
    """96 of eight numbers and a class each."""

    def __init__(self) -> None:
        self.x, self.labels = torch.randn(96, 8), torch.randint(0, 4, (96,))
        if "unequal" in WORDS:
            self.labels[::3] = -100
        self.rng, self.n = np.random.default_rng(5), 0

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        x = self.x[index]
        if "copied" in WORDS:
            x = x + float(self.rng.normal())
        if "numbered" in WORDS:
            self.n += 1
            x = x + self.n
        return {"x": x, "labels": self.labels[index]}


class Doubled(nn.Module):
    """Writes to what dropout gives back, which is its input where nothing is dropped."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * 1.5
        z = functional.dropout(y, 0.5, False)
        z += z
        return y


class Whole(nn.Module):
    """A model in float32 inside of a region of autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return self.last(self.inner(x.float()).tanh())


CALLS: list[dict[str, int]] = []


def counted() -> nn.Module:
    """Counts its calls by a method of an object that it makes, which a compiled graph does not repeat."""
    state = {"n": 0}
    CALLS.append(state)

    class Counter:
        def count(self) -> None:
            state["n"] += 1

    class Counted(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            Counter().count()
            return x * 1.0

    return Counted()


MIDDLE = {
    "pool": lambda: nn.Sequential(nn.Unflatten(1, (2, 8)), nn.AvgPool1d(3, 2, ceil_mode=True), nn.Flatten()),
    "alias": Doubled,
    "counted": counted,
}


def net() -> nn.Module:
    """Eight numbers in, four out."""
    if "region" in WORDS:
        return Whole()
    middle = next((MIDDLE[word]() for word in WORDS if word in MIDDLE), nn.Identity())
    return nn.Sequential(nn.Linear(8, 16), nn.SiLU(), middle, nn.Linear(8 if "pool" in WORDS else 16, 4))


def plant() -> None:
    """What is wrong in the compiler itself."""
    if "decomposition" in WORDS:
        from torch._inductor.decomposition import decompositions

        aten = torch.ops.aten.silu_backward.default
        right = decompositions[aten]
        decompositions[aten] = lambda grad, x: right(grad, x) * 0.9
    if "lowering" in WORDS:
        from torch._inductor import lowering

        aten = torch.ops.aten.sigmoid.default
        original = lowering.lowerings[aten]

        @functools.wraps(original)
        def wrong(*args: Any, **kwargs: Any) -> Any:
            return lowering.lowerings[torch.ops.aten.mul.Tensor](original(*args, **kwargs), 0.9)

        lowering.lowerings[aten] = wrong
