"""A 2-layer GPT that MindSpore trains for a few steps, in GRAPH or PyNative mode; prints its losses.

python graph_gpt.py --mode graph --style cell --fault wo --steps 3
"""

from __future__ import annotations

import argparse
import time

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.experimental import optim

WORDS, N_LAYERS, BATCH = 32, 2, 4
parser = argparse.ArgumentParser()
parser.add_argument("--mode", default="graph", choices=["graph", "pynative"])
parser.add_argument("--optimizer", default="kernel", choices=["kernel", "written-out"])
parser.add_argument("--style", default="cell", choices=["cell", "function", "accumulate", "model", "jit"])
parser.add_argument("--fault", default="", choices=["", "wo", "log", "data", "weight"])
parser.add_argument("--at", type=int, default=1, help="step of the fault data")
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--width", type=int, default=16)
parser.add_argument("--length", type=int, default=8)
parser.add_argument("--evaluate", action="store_true", help="call the network alone between steps")
given = parser.parse_args()
WIDTH, LENGTH = given.width, given.length


class Attention(nn.Cell):
    """One head behind a mask of -inf."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Dense(WIDTH, 3 * WIDTH)
        self.out = nn.Dense(WIDTH, WIDTH)
        self.mask = Tensor(np.triu(np.full((LENGTH, LENGTH), -np.inf, np.float32), 1))

    def construct(self, x: Tensor) -> Tensor:
        q, k, v = ops.split(self.qkv(x), WIDTH, -1)
        scores = ops.matmul(q, k.swapaxes(1, 2)) / WIDTH**0.5 + self.mask
        return self.out(ops.matmul(ops.softmax(scores, -1), v))


class FeedForward(nn.Cell):
    """With fault wo: inputs of about 2000, in float16, are squared before wo."""

    def __init__(self) -> None:
        super().__init__()
        self.wi = nn.Dense(WIDTH, 2 * WIDTH)
        self.act = nn.ReLU()
        self.wo = nn.Dense(2 * WIDTH, WIDTH)

    def construct(self, x: Tensor) -> Tensor:
        h = self.act(self.wi(x))
        if given.fault == "wo":
            h = ops.cast(h * 1000.0, ms.float16)
            h = h * h
            h = ops.cast(h, ms.float32)
        if given.fault == "log":
            h = ops.log(h)
        return self.wo(h)


class Block(nn.Cell):
    """Attention and a feed-forward network."""

    def __init__(self) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm((WIDTH,)), nn.LayerNorm((WIDTH,))
        self.attention, self.ff = Attention(), FeedForward()

    def construct(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.ln1(x))
        return x + self.ff(self.ln2(x))


class Net(nn.Cell):
    """Embedding, blocks, head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.CellList([Block() for _ in range(N_LAYERS)])
        self.norm = nn.LayerNorm((WIDTH,))
        self.head = nn.Dense(WIDTH, WORDS, has_bias=False)

    def construct(self, ids: Tensor, boost: Tensor) -> Tensor:
        x = self.embed(ids) * boost
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class NetWithLoss(nn.Cell):
    """Mean cross entropy."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.net = net

    def construct(self, ids: Tensor, boost: Tensor, labels: Tensor) -> Tensor:
        return ops.cross_entropy(self.net(ids, boost).reshape((-1, WORDS)), labels.reshape((-1,)))


def batches():
    draw = np.random.default_rng(3)
    for step in range(given.steps):
        ids = draw.integers(0, WORDS, (BATCH, LENGTH)).astype(np.int32)
        boost = np.ones((BATCH, 1, 1), np.float32)
        if given.fault == "data" and step == given.at:
            boost[2] = np.nan
        yield Tensor(ids), Tensor(boost), Tensor(np.roll(ids, -1, 1))


OPTIMIZERS = {"kernel": nn.Adam, "written-out": optim.AdamW}


def step_of(model: NetWithLoss, optimizer: nn.Cell):
    """What does one step, by the style."""
    if given.style == "cell":
        step = nn.TrainOneStepCell(model, optimizer)
        step.set_train()
        return step
    model.set_train()
    forward = ms.value_and_grad(model, None, model.trainable_params())

    def function(*batch: Tensor) -> Tensor:
        loss, gradients = forward(*batch)
        if given.style == "accumulate":
            other, more = forward(*batch)
            loss, gradients = (loss + other) / 2, tuple((a + b) / 2 for a, b in zip(gradients, more, strict=True))
        optimizer(gradients)
        return loss

    if given.style == "jit":

        @ms.jit
        def compiled(*batch: Tensor) -> Tensor:
            loss, gradients = forward(*batch)
            optimizer(gradients)
            return loss

        return compiled
    return function


def main() -> None:
    ms.set_context(mode=ms.GRAPH_MODE if given.mode == "graph" else ms.PYNATIVE_MODE)
    ms.set_seed(1)
    net = Net()
    draw = np.random.default_rng(0)
    for parameter in net.trainable_params():
        value = draw.standard_normal(parameter.shape) / max(parameter.shape[-1], 1) ** 0.5
        parameter.set_data(Tensor(value.astype(np.float32)))
    if given.fault == "weight":
        net.head.weight.set_data(Tensor(np.full((WORDS, WIDTH), np.inf, np.float32)))
    optimizer = OPTIMIZERS[given.optimizer](net.trainable_params(), 1e-3)
    if given.style == "model":
        data = ms.dataset.GeneratorDataset(lambda: (tuple(t.asnumpy() for t in b) for b in batches()), ["i", "b", "l"])
        ms.Model(NetWithLoss(net), optimizer=optimizer).train(
            1, data, callbacks=[ms.train.LossMonitor()], dataset_sink_mode=False
        )
        return
    step = step_of(NetWithLoss(net), optimizer)
    for batch in batches():
        if given.evaluate:
            net.set_train(False)
            net(*batch[:2]).asnumpy()
            net.set_train(True)
        started = time.perf_counter()
        loss = float(step(*batch).asnumpy())
        print(f"loss {loss!r} {time.perf_counter() - started:.4f} s", flush=True)


main()
