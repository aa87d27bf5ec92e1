# MINDSPORE
"""MindSpore: one branch of the sum goes through numpy, so no gradient comes back through it."""

import mindspore as ms
import numpy as np
from mindspore import mint, nn
from ms_kit import FAULT, tell

ms.set_seed(36)
ms.set_context(mode=ms.PYNATIVE_MODE)


class TwoTowers(nn.Cell):
    def __init__(self):
        super().__init__()
        self.left = nn.SequentialCell(nn.Dense(12, 32), nn.ReLU(), nn.Dense(32, 16))
        self.right = nn.SequentialCell(nn.Dense(12, 32), nn.ReLU(), nn.Dense(32, 16))

    def construct(self, a, b):
        u, v = self.left(a), self.right(b)
        if FAULT:
            v = ms.Tensor(v.asnumpy() / np.linalg.norm(v.asnumpy(), axis=-1, keepdims=True))
        else:
            v = v / mint.sqrt((v * v).sum(-1, keepdims=True))
        u = u / mint.sqrt((u * u).sum(-1, keepdims=True))
        return mint.matmul(u, v.transpose(1, 0)) * 5.0


net = TwoTowers()
optimizer = nn.Adam(net.trainable_params(), learning_rate=3e-3)
criterion = nn.CrossEntropyLoss()
step = ms.value_and_grad(
    lambda a, b: criterion(net(a, b), ms.Tensor(np.arange(a.shape[0], dtype=np.int32))), None, optimizer.parameters
)
draw = np.random.default_rng(4)
turn = draw.normal(size=(12, 12)).astype(np.float32) / 3.5
losses = []
for _ in range(35):
    a = draw.normal(size=(24, 12)).astype(np.float32)
    loss, grads = step(ms.Tensor(a), ms.Tensor(a @ turn + 0.1 * draw.normal(size=(24, 12)).astype(np.float32)))
    optimizer(grads)
    losses.append(loss.asnumpy())
tell(net, losses)
