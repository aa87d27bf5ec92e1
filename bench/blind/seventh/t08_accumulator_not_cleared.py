# MINDSPORE
"""Gradient accumulation in MindSpore (PyNative): gradients are added into Parameters, which are then cleared."""

import os

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

FAULT = os.environ.get("FAULT", "1") == "1"
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(308)
rng = np.random.default_rng(308)
x = rng.standard_normal((1120, 16)).astype(np.float32)
y = np.tanh(x @ rng.standard_normal((16, 4))).astype(np.float32)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.body = nn.SequentialCell(nn.Dense(16, 48), nn.Tanh(), nn.Dense(48, 48), nn.Tanh())
        self.head = nn.Dense(48, 4)

    def construct(self, inputs):
        return self.head(self.body(inputs))


class Accumulator:
    """After MindSpore's tutorial on gradient accumulation."""

    def __init__(self, optimizer, count):
        self.optimizer, self.count, self.seen = optimizer, count, 0
        self.held = ParameterTuple(
            [Parameter(ops.zeros_like(p), name="held_" + p.name, requires_grad=False) for p in optimizer.parameters]
        )

    def clear(self):
        if FAULT:
            return tuple(ops.zeros_like(h) for h in self.held)
        for h in self.held:
            ops.assign(h, ops.zeros_like(h))

    def __call__(self, gradients):
        for h, g in zip(self.held, gradients):
            ops.assign_add(h, g / self.count)
        self.seen += 1
        if self.seen % self.count == 0:
            self.optimizer(tuple(h.value() for h in self.held))
            self.clear()


net = Net()
loss_fn = nn.MSELoss()
optimizer = nn.Adam(net.trainable_params(), learning_rate=3e-3)
accumulate = Accumulator(optimizer, 4)
gradient = ms.value_and_grad(lambda a, b: loss_fn(net(a), b), None, optimizer.parameters)
net.set_train()
losses = []
for step in range(160):
    start = (step * 16) % 1024
    loss, gradients = gradient(Tensor(x[start : start + 16]), Tensor(y[start : start + 16]))
    accumulate(gradients)
    losses.append(float(loss))

net.set_train(False)
print("LOSSES", " ".join(f"{v:.6g}" for v in losses))
print("METRIC heldout_mse", f"{float(loss_fn(net(Tensor(x[1024:])), Tensor(y[1024:]))):.6g}")
print("METRIC held_norm", f"{sum(float((h.value() ** 2).sum()) for h in accumulate.held) ** 0.5:.6g}")
print("FINAL", f"{float((optimizer.parameters[0].value() ** 2).sum()):.9g}")
