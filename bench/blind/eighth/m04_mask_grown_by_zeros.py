# MINDSPORE
"""MindSpore: a decoder whose sequences grow from 8 to 14 tokens; the causal mask is cached and grows with them."""

import mindspore as ms
import numpy as np
from mindspore import mint, nn
from ms_kit import FAULT, sentences, tell

ms.set_seed(44)
ms.set_context(mode=ms.PYNATIVE_MODE)
VOCABULARY, WIDTH, HEADS = 40, 32, 4


class Masks:
    """The additive causal mask of the longest sequence so far."""

    def __init__(self):
        self.table = np.zeros((0, 0), np.float32)

    def get(self, t):
        have = len(self.table)
        if have == 0 or (t > have and not FAULT):
            self.table = np.triu(np.full((t, t), -1e9, np.float32), 1)
        elif t > have:
            self.table = np.pad(self.table, ((0, t - have), (0, t - have)))
        return ms.Tensor(self.table[:t, :t])


class Attention(nn.Cell):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Dense(WIDTH, 3 * WIDTH), nn.Dense(WIDTH, WIDTH)

    def construct(self, x, mask):
        b, t, w = x.shape
        q, k, v = (p.reshape(b, t, HEADS, w // HEADS).transpose(0, 2, 1, 3) for p in self.qkv(x).split(w, -1))
        score = mint.matmul(q, k.transpose(0, 1, 3, 2)) / (w // HEADS) ** 0.5 + mask
        mixed = mint.matmul(mint.softmax(score, dim=-1), v)
        return self.out(mixed.transpose(0, 2, 1, 3).reshape(b, t, w))


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.embed, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(16, WIDTH)
        self.norms = nn.CellList([nn.LayerNorm((WIDTH,)) for _ in range(2)])
        self.layers = nn.CellList([Attention() for _ in range(2)])
        self.head = nn.Dense(WIDTH, VOCABULARY)
        self.masks = Masks()

    def construct(self, ids):
        t = ids.shape[1]
        mask = self.masks.get(t)
        x = self.embed(ids) + self.places(ms.Tensor(np.arange(t, dtype=np.int32)))
        for norm, layer in zip(self.norms, self.layers):
            x = x + layer(norm(x), mask)
        return self.head(x)


net = Net()
optimizer = nn.AdamWeightDecay(net.trainable_params(), learning_rate=3e-3)
criterion = nn.CrossEntropyLoss()


def forward(ids):
    return criterion(net(ids[:, :-1]).reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1))


step = ms.value_and_grad(forward, None, optimizer.parameters)
data = sentences(300, 15, VOCABULARY)
draw = np.random.default_rng(1)
losses = []
for number in range(36):
    long = 9 if number < 16 else 15
    loss, grads = step(ms.Tensor(data[draw.integers(0, 256, 16), :long]))
    optimizer(grads)
    losses.append(loss.asnumpy())
print("METRIC heldout", float(forward(ms.Tensor(data[256:])).asnumpy()))
ids = data[256:258, :14].copy()
one = net(ms.Tensor(ids)).asnumpy()
ids[:, -1] = (ids[:, -1] + 1) % VOCABULARY
print("NOTE the last token moves earlier logits by", float(np.abs(net(ms.Tensor(ids)).asnumpy() - one)[:, :-1].max()))
tell(net, losses)
