"""A small network of MindSpore's and some steps of it, for tests of what a run is made to do."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn, ops

STEPS = 4
WORDS = 11


class Net(nn.Cell):
    """Embedding, layer norm, head: the names that differ between the frameworks."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        self.norm = nn.LayerNorm((width,))
        self.head = nn.Dense(width, WORDS, has_bias=False)

    def construct(self, ids: Any) -> Any:
        return self.head(self.norm(self.embed(ids)))


def batches() -> list[Any]:
    draw = np.random.default_rng(7)
    return [ms.Tensor(draw.integers(0, WORDS, 8), ms.int32) for _ in range(STEPS)]


class Training:
    """Some steps; keeps losses, and rates as they are between steps.

    Args:
        how: the program's way of training: by "function" (value_and_grad), or by "cell" (TrainOneStepCell).
        kind: makes the optimizer of (parameters, rate).
    """

    def __init__(self, seed: int = 0, *, how: str = "function", kind: Any = nn.Adam, lr: Any = 0.1, width: int = 6,
                 scale: float = 1.0, net: Any = None) -> None:  # fmt: skip
        ms.set_seed(seed)
        self.net = net if net is not None else Net(width)
        self.net.set_train()
        self.how, self.scale = how, scale
        options = {} if scale == 1.0 else {"loss_scale": scale}
        self.optimizer = kind(self.net.trainable_params(), lr, **options)
        self.losses: list[float] = []
        self.rates: list[float] = []
        self.steps: list[dict[str, np.ndarray]] = []

    def go(self) -> Training:
        def forward(ids: Any) -> Any:
            return ops.cross_entropy(self.net(ids), (ids + 1) % WORDS) * self.scale

        if self.how == "cell":
            whole = nn.TrainOneStepCell(WithLoss(self.net), self.optimizer)
            whole.set_train()
        else:
            differentiated = ms.value_and_grad(forward, None, self.optimizer.parameters)
        for ids in batches():
            if self.how == "cell":
                loss = whole(ids)
            else:
                loss, gradients = differentiated(ids)
                self.optimizer(gradients)
            self.losses.append(float(loss.asnumpy()))
            self.steps.append(values(self.net))
            rate = self.optimizer.learning_rate if isinstance(self.optimizer, nn.Optimizer) else None
            self.rates.append(float(rate.asnumpy()) if isinstance(rate, ms.Parameter) else -1.0)
        return self


class WithLoss(nn.Cell):
    """A loss around a network, as programs write it themselves."""

    def __init__(self, net: Any) -> None:
        super().__init__(auto_prefix=False)
        self.net = net

    def construct(self, ids: Any) -> Any:
        return ops.cross_entropy(self.net(ids), (ids + 1) % WORDS)


def values(net: Any) -> dict[str, np.ndarray]:
    """Copies of the parameters, by MindSpore's names."""
    return {p.name: p.asnumpy().copy() for p in net.get_parameters()}
