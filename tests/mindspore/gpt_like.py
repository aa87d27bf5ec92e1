"""A small network with what taps find hard, and a way to train it: with a tap or without, to the same bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

from hypocenter.config import Config
from hypocenter.summary.reducers.mindspore import MindSporeReducer
from hypocenter.tap.clock import Clock
from hypocenter.tap.mindspore.cells import CellTap
from hypocenter.tap.mindspore.names import NameMap
from hypocenter.tap.mindspore.patches import Patches


class Attention(nn.Cell):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Dense(width, 3 * width), nn.Dense(width, width)

    def construct(self, x: Tensor, mask: Tensor | None = None, scale: float = 1.0) -> tuple[Tensor, Mapping[str, Any]]:
        q, k, v = ops.chunk(self.qkv(x), 3, -1)
        scores = ops.matmul(q, k.swapaxes(-1, -2)) * (scale / q.shape[-1] ** 0.5)
        if mask is not None:
            scores = scores + mask
        weights = ops.softmax(scores, -1)
        return self.out(ops.matmul(weights, v)), {"cache": (k, v), "weights": weights}


class Block(nn.Cell):
    def __init__(self, width: int, shared: nn.Cell) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm((width,)), Attention(width)
        self.norm2 = nn.LayerNorm((width,))
        self.mlp = nn.SequentialCell(nn.Dense(width, 2 * width), nn.GELU(), nn.Dense(2 * width, width), nn.Identity())
        self.shared = shared

    def construct(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        attended, _ = self.attention(self.norm1(x), mask=mask)
        x = x + attended
        return self.shared(self.shared(x + self.mlp(self.norm2(x))))


class Net(nn.Cell):
    """Embedding, two blocks with one shared cell, tied head."""

    def __init__(self, width: int = 16, vocabulary: int = 50, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        shared = nn.Tanh()
        self.blocks = nn.CellList([Block(width, shared) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm((width,)), nn.Dense(width, vocabulary, has_bias=False)

    def construct(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x, mask=mask)
        return self.head(self.norm(x))


class WithLoss(nn.Cell):
    def __init__(self, net: nn.Cell) -> None:
        super().__init__()
        self.net, self.loss = net, nn.CrossEntropyLoss()

    def construct(self, ids: Tensor, targets: Tensor) -> Tensor:
        logits = self.net(ids)
        return self.loss(logits.reshape(-1, logits.shape[-1]).astype(ms.float32), targets.reshape(-1))


def seeded(make: Callable[[], nn.Cell]) -> nn.Cell:
    """A cell with the same weights every time."""
    cell = make()
    rng = np.random.default_rng(0)
    for parameter in cell.get_parameters():
        value = rng.normal(size=parameter.shape) * 0.2
        parameter.set_data(Tensor(value.astype(np.float32)).astype(parameter.dtype))
    return cell


def batches(n: int, shape: tuple[int, int] = (2, 6)) -> list[tuple[Tensor, Tensor]]:
    rng = np.random.default_rng(1)
    return [tuple(Tensor(rng.integers(0, 50, shape).astype(np.int32)) for _ in range(2)) for _ in range(n)]


@contextmanager
def tapped(
    model: nn.Cell, warnings: list[str] | None = None, **options: Any
) -> Iterator[tuple[CellTap, Clock, NameMap]]:
    """A tap on the cells below `model`; `record(...)` of the clock is the test's to set."""
    names, clock, patches = NameMap(), Clock(), Patches()
    names.add_root(model)
    config = Config(**options)
    reducer = MindSporeReducer(histogram=config.histogram, sketch=config.sketch)
    tap = CellTap(names, reducer, clock, config, (warnings if warnings is not None else []).append)
    undo_patches = patches.attach()
    undo = tap.attach(patches)
    try:
        yield tap, clock, names
    finally:
        undo()
        undo_patches()


def values_of(parameters: Any) -> list[np.ndarray]:
    return [parameter.asnumpy().copy() for parameter in parameters]


__all__ = [
    "Attention", "Block", "Net", "Parameter", "WithLoss", "batches", "mint", "seeded", "tapped", "values_of",
]  # fmt: skip
