"""A small network of MindSpore's."""

import mindspore as ms
import numpy as np
from mindspore import nn

ms.set_seed(0)
net = nn.SequentialCell(nn.Dense(4, 8), nn.GELU(), nn.Dense(8, 1))
optimizer = nn.Adam(net.trainable_params(), 1e-3)
draw = np.random.default_rng(0)
step = ms.value_and_grad(lambda x, y: (net(x) - y).square().mean(), None, optimizer.parameters)
for _ in range(3):
    loss, gradients = step(*(ms.Tensor(draw.normal(size=(16, n)), ms.float32) for n in (4, 1)))
    optimizer(gradients)
