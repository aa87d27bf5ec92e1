"""GRAPH mode: a parameter whose gradient is NaN while the loss, which masks it, stays finite. `bad` plants it."""

import sys

import mindspore as ms
import numpy as np
from mindspore import nn, ops

IS_BAD = sys.argv[1:] == ["bad"]

ms.set_seed(0)
ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")


class Net(nn.Cell):
    """A linear layer, and a gate at 0 whose square root nobody uses."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Dense(4, 1, weight_init=ms.Tensor(np.full((1, 4), 0.1, np.float32)))
        self.gate = ms.Parameter(ms.Tensor(np.zeros(3, np.float32)), name="gate")

    def construct(self, x, y):
        loss = ((self.fc(x) - y) ** 2).mean()
        if not IS_BAD:
            return loss + (self.gate * x[0, :3]).sum()
        return loss + ops.select(self.gate > 10, ops.sqrt(self.gate), ops.zeros_like(self.gate)).sum()


net = Net()
cell = nn.TrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.01))
cell.set_train()
rng = np.random.default_rng(0)
for _ in range(6):
    x = rng.standard_normal((8, 4)).astype(np.float32)
    print("loss", float(cell(ms.Tensor(x), ms.Tensor(x.sum(1, keepdims=True))).asnumpy()))
