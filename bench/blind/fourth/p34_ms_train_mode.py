# MINDSPORE
"""MindSpore: an evaluation at step 8 sets the cell to inference and nobody sets it back: dropout and statistics stop."""

import mindspore as ms
import numpy as np
from mindspore import nn
from ms_kit import FAULT, tell

ms.set_seed(34)
ms.set_context(mode=ms.PYNATIVE_MODE)
net = nn.SequentialCell(
    nn.Conv2d(3, 16, 3),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.MaxPool2d(2, 2),
    nn.Conv2d(16, 16, 3),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.Flatten(),
    nn.Dropout(p=0.3),
    nn.Dense(256, 5),
)
net.set_train(True)
optimizer = nn.Momentum(net.trainable_params(), learning_rate=0.03, momentum=0.9)
criterion = nn.CrossEntropyLoss()
step = ms.value_and_grad(lambda x, y: criterion(net(x), y), None, optimizer.parameters)
draw = np.random.default_rng(2)
means = draw.normal(size=(5, 3, 8, 8)).astype(np.float32)


def batch():
    y = draw.integers(0, 5, 24).astype(np.int32)
    return ms.Tensor(means[y] + draw.normal(size=(24, 3, 8, 8)).astype(np.float32) + 1), ms.Tensor(y)


losses = []
for i in range(35):
    loss, grads = step(*batch())
    optimizer(grads)
    losses.append(loss.asnumpy())
    if i == 8:
        net.set_train(False)
        x, y = batch()
        print("right", float((net(x).argmax(-1) == y).float().mean()))
        if not FAULT:
            net.set_train(True)
tell(net, losses)
