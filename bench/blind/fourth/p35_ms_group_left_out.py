# MINDSPORE
"""MindSpore: parameter groups by name, and the LSTM's parameters are in neither."""

import mindspore as ms
import numpy as np
from mindspore import nn
from ms_kit import FAULT, sentences, tell

ms.set_seed(35)
ms.set_context(mode=ms.PYNATIVE_MODE)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.embed, self.lstm, self.head = nn.Embedding(48, 24), nn.LSTM(24, 32, batch_first=True), nn.Dense(32, 48)

    def construct(self, ids):
        return self.head(self.lstm(self.embed(ids))[0])


net = Net()
known = net.trainable_params()
rest = ("bias",) if FAULT else ("bias", "lstm")
groups = [
    {"params": [p for p in known if p.name.endswith(".weight") or "embedding_table" in p.name], "weight_decay": 0.01},
    {"params": [p for p in known if any(part in p.name for part in rest) and not p.name.endswith(".weight")]},
]
if FAULT:
    groups[1]["params"] = [p for p in groups[1]["params"] if not p.name.startswith("lstm")]
optimizer = nn.Adam(groups, learning_rate=5e-3)
criterion = nn.CrossEntropyLoss()
step = ms.value_and_grad(
    lambda ids: criterion(net(ids[:, :-1]).reshape(-1, 48), ids[:, 1:].reshape(-1)), None, optimizer.parameters
)
data = sentences(300, 11, 48)
draw = np.random.default_rng(3)
losses = []
for _ in range(30):
    loss, grads = step(ms.Tensor(data[draw.integers(0, 300, 16)]))
    optimizer(grads)
    losses.append(loss.asnumpy())
tell(net, losses)
