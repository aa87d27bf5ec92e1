# MINDSPORE
"""MindSpore: attention whose softmax runs over the queries, not over the keys."""

import mindspore as ms
import numpy as np
from mindspore import mint, nn
from ms_kit import FAULT, sentences, tell

ms.set_seed(33)
ms.set_context(mode=ms.PYNATIVE_MODE)


class Attention(nn.Cell):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.qkv, self.out = nn.Dense(width, 3 * width), nn.Dense(width, width)

    def construct(self, x):
        b, t, w = x.shape
        q, k, v = (p.reshape(b, t, self.heads, self.size).transpose(0, 2, 1, 3) for p in self.qkv(x).split(w, -1))
        score = mint.matmul(q, k.transpose(0, 1, 3, 2)) / self.size**0.5
        score = score + ms.Tensor(np.triu(np.full((t, t), -1e9, np.float32), 1))
        weight = mint.softmax(score, dim=2 if FAULT else 3)
        return self.out(mint.matmul(weight, v).transpose(0, 2, 1, 3).reshape(b, t, w))


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(48, 32)
        self.norms = nn.CellList([nn.LayerNorm((32,)) for _ in range(2)])
        self.layers = nn.CellList([Attention(32, 4) for _ in range(2)])
        self.head = nn.Dense(32, 48)

    def construct(self, ids):
        x = self.embed(ids)
        for norm, layer in zip(self.norms, self.layers):
            x = x + layer(norm(x))
        return self.head(x)


net = Net()
optimizer = nn.AdamWeightDecay(net.trainable_params(), learning_rate=3e-3)
criterion = nn.CrossEntropyLoss()


def forward(ids):
    logits = net(ids[:, :-1])
    return criterion(logits.reshape(-1, 48), ids[:, 1:].reshape(-1))


step = ms.value_and_grad(forward, None, optimizer.parameters)
data = sentences(300, 13, 48)
draw = np.random.default_rng(1)
losses = []
for _ in range(30):
    loss, grads = step(ms.Tensor(data[draw.integers(0, 300, 16)]))
    optimizer(grads)
    losses.append(loss.asnumpy())
tell(net, losses)
