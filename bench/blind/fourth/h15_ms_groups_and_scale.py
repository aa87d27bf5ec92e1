# MINDSPORE
"""Healthy MindSpore: a frozen embedding, two rates, gradients clipped by global norm, a static loss scale undone once."""

import mindspore as ms
import numpy as np
from mindspore import nn, ops
from ms_kit import sentences, tell

ms.set_seed(115)
ms.set_context(mode=ms.PYNATIVE_MODE)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.embed, self.mix = nn.Embedding(48, 24), nn.LSTM(24, 32, batch_first=True)
        self.drop, self.head = nn.Dropout(p=0.1), nn.Dense(32, 48)

    def construct(self, ids):
        return self.head(self.drop(self.mix(self.embed(ids))[0]))


net = Net()
net.set_train(True)
net.embed.embedding_table.requires_grad = False
known = net.trainable_params()
head = [p for p in known if p.name.startswith("head")]
rest = [p for p in known if not p.name.startswith("head")]
optimizer = nn.Adam(
    [{"params": head, "lr": 1e-2}, {"params": rest, "lr": nn.cosine_decay_lr(0.0, 5e-3, 60, 30, 2)}], learning_rate=1e-3
)
criterion = nn.CrossEntropyLoss(label_smoothing=0.05)
SCALE = 128.0
step = ms.value_and_grad(
    lambda ids: criterion(net(ids[:, :-1]).reshape(-1, 48), ids[:, 1:].reshape(-1)) * SCALE, None, optimizer.parameters
)
data = sentences(300, 11, 48)
draw = np.random.default_rng(7)
losses = []
for _ in range(30):
    loss, grads = step(ms.Tensor(data[draw.integers(0, 300, 16)]))
    grads = ops.clip_by_global_norm(tuple(g / SCALE for g in grads), 1.0)
    optimizer(grads)
    losses.append(loss.asnumpy() / SCALE)
tell(net, losses)
