# MINDSPORE
"""MindSpore: dynamic loss scaling by amp.DynamicLossScaler."""

import mindspore as ms
import numpy as np
from mindspore import amp, mint, nn
from ms_kit import FAULT, sentences, tell

ms.set_seed(43)
ms.set_context(mode=ms.PYNATIVE_MODE)
VOCABULARY, WIDTH = 32, 24


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.mix, self.norm = nn.Dense(2 * WIDTH, WIDTH), nn.LayerNorm((WIDTH,))
        self.head = nn.Dense(WIDTH, VOCABULARY)

    def construct(self, ids):
        h = self.embed(ids)
        pair = mint.cat((h[:, :-1], h[:, 1:]), -1)
        return self.head(self.norm(h[:, 1:] + mint.tanh(self.mix(pair))))


net = Net()
optimizer = nn.Momentum(net.trainable_params(), learning_rate=0.2, momentum=0.9)
scaler = amp.DynamicLossScaler(scale_value=2**10, scale_factor=2, scale_window=10)
criterion = nn.CrossEntropyLoss()


def forward(ids):
    logits = net(ids[:, :-1])
    loss = criterion(logits.reshape(-1, VOCABULARY), ids[:, 2:].reshape(-1))
    return scaler.scale(loss)


step = ms.value_and_grad(forward, None, optimizer.parameters)
data = sentences(300, 13, VOCABULARY)
draw = np.random.default_rng(1)
losses, norms = [], []
for number in range(36):
    scaled, grads = step(ms.Tensor(data[draw.integers(0, 256, 16)]))
    finite = amp.all_finite(grads)
    if FAULT:
        losses.append(scaler.unscale((scaled,))[0].asnumpy())
        scaler.adjust(finite)
        grads = scaler.unscale(grads)
    else:
        losses.append(scaler.unscale((scaled,))[0].asnumpy())
        grads = scaler.unscale(grads)
        scaler.adjust(finite)
    if finite:
        norms.append(float(sum((g.asnumpy() ** 2).sum() for g in grads) ** 0.5))
        optimizer(grads)
print("NOTE scale", float(scaler.scale_value.asnumpy()), "norms", [round(n, 3) for n in norms[7:13]])
held = ms.Tensor(data[256:])
logits = net(held[:, :-1])
print("METRIC heldout", float(criterion(logits.reshape(-1, VOCABULARY), held[:, 2:].reshape(-1)).asnumpy()))
tell(net, losses)
