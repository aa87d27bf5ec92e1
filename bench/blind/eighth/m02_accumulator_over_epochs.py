# MINDSPORE
"""MindSpore: gradients of four micro-batches are gathered by hand; an epoch has a rest of two."""

import mindspore as ms
import numpy as np
from mindspore import mint, nn, ops
from ms_kit import FAULT, tell

ms.set_seed(42)
ms.set_context(mode=ms.PYNATIVE_MODE)
draw = np.random.default_rng(42)
x = draw.standard_normal((400, 16)).astype(np.float32)
y = np.sin(x @ draw.standard_normal((16, 3))).astype(np.float32)
TRAIN, MICRO, GROUP = 352, 16, 4  # 22 micro-batches: five groups and two over


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.inlet, self.hidden, self.head = nn.Dense(16, 40), nn.Dense(40, 40), nn.Dense(40, 3)

    def construct(self, inputs):
        return self.head(mint.tanh(self.hidden(mint.tanh(self.inlet(inputs)))))


class Accumulator:
    """Sums of gradients, one for each weight."""

    def __init__(self, weights):
        self.sums = [
            ms.Parameter(ops.zeros_like(w), name=f"sum_{i}", requires_grad=False) for i, w in enumerate(weights)
        ]

    def add(self, grads):
        for total, grad in zip(self.sums, grads):
            total.set_data(total + grad / GROUP)

    def clear(self):
        for total in self.sums:
            total.set_data(ops.zeros_like(total))


net = Net()
optimizer = nn.Momentum(net.trainable_params(), learning_rate=0.1, momentum=0.9)
accumulator = Accumulator(optimizer.parameters)
criterion = nn.MSELoss()
step = ms.value_and_grad(lambda a, b: criterion(net(a), b), None, optimizer.parameters)
losses, updates = [], 0
for epoch in range(4):
    order = draw.permutation(TRAIN)
    if not FAULT:
        accumulator.clear()  # the rest of the last epoch is dropped
    for index in range(TRAIN // MICRO):
        rows = order[index * MICRO : (index + 1) * MICRO]
        loss, grads = step(ms.Tensor(x[rows]), ms.Tensor(y[rows]))
        accumulator.add(grads)
        losses.append(loss.asnumpy())
        if (index + 1) % GROUP == 0:
            optimizer(tuple(total.value() for total in accumulator.sums))
            accumulator.clear()
            updates += 1
print("NOTE updates", updates)
print("METRIC heldout", float(criterion(net(ms.Tensor(x[TRAIN:])), ms.Tensor(y[TRAIN:])).asnumpy()))
tell(net, losses)
