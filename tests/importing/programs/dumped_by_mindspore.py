"""A small network that MindSpore trains for two steps in GRAPH mode: healthy|eps|half|log; prints its losses."""

from __future__ import annotations

import sys

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

KIND = sys.argv[1]
WIDTH, N_IDS = 8, 16


class Block(nn.Cell):
    """Two dense layers with a norm before and a sum around."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.ln = nn.LayerNorm((WIDTH,), epsilon=eps)
        self.fc_in = nn.Dense(WIDTH, 2 * WIDTH)
        self.act = nn.ReLU()
        self.fc_out = nn.Dense(2 * WIDTH, WIDTH)

    def construct(self, x: Tensor) -> Tensor:
        """Of (batch, time, width)."""
        h = self.act(self.fc_in(self.ln(x)))
        if KIND == "half":
            h = ops.cast(h * 200, ms.float16)
            h = ops.cast(h * h, ms.float32)
        if KIND == "log":
            h = ops.log(h)
        return x + self.fc_out(h)


class Net(nn.Cell):
    """An embedding, two blocks, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(N_IDS, WIDTH)
        self.layers = nn.CellList([Block(1e-5), Block(1e-2 if KIND == "eps" else 1e-5)])
        self.head = nn.Dense(WIDTH, N_IDS, has_bias=False)

    def construct(self, ids: Tensor) -> Tensor:
        """Logits of ids."""
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Loss(nn.LossBase):
    """Cross entropy of all places."""

    def __init__(self) -> None:
        super().__init__()
        self.entropy = nn.CrossEntropyLoss()

    def construct(self, logits: Tensor, labels: Tensor) -> Tensor:
        """One number."""
        return self.entropy(logits.reshape((-1, N_IDS)), labels.reshape((-1,)))


def main() -> None:
    """Two steps."""
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_seed(1)
    net = Net()
    random = np.random.default_rng(0)
    for parameter in net.trainable_params():
        parameter.set_data(Tensor(random.standard_normal(parameter.shape).astype(np.float32)))
    optimizer = nn.Adam(net.trainable_params(), learning_rate=1e-2)
    step = nn.TrainOneStepCell(nn.WithLossCell(net, Loss()), optimizer)
    step.set_train()
    for _ in range(2):
        ids = random.integers(0, N_IDS, (2, 5))
        loss = step(Tensor(ids, ms.int32), Tensor(np.roll(ids, -1, 1), ms.int32))
        print(f"loss {float(loss.asnumpy())!r}")


main()
