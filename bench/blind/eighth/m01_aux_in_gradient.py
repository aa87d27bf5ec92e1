# MINDSPORE
"""MindSpore: value_and_grad of a function that gives back the loss and, for the log, the mean confidence and the logits."""

import mindspore as ms
import numpy as np
from mindspore import mint, nn
from ms_kit import FAULT, tell

ms.set_seed(41)
ms.set_context(mode=ms.PYNATIVE_MODE)
draw = np.random.default_rng(41)
x = draw.standard_normal((512, 16)).astype(np.float32)
y = np.tanh(x @ draw.standard_normal((16, 6))) @ draw.standard_normal((6, 5))
y = y.argmax(1).astype(np.int32)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.inlet, self.norm = nn.Dense(16, 32), nn.LayerNorm((32,))
        self.hidden, self.head = nn.Dense(32, 32), nn.Dense(32, 5)

    def construct(self, inputs):
        h = mint.tanh(self.norm(self.inlet(inputs)))
        return self.head(h + mint.tanh(self.hidden(h)))


net = Net()
optimizer = nn.AdamWeightDecay(net.trainable_params(), learning_rate=4e-3)
criterion = nn.CrossEntropyLoss()


def forward(inputs, targets):
    logits = net(inputs)
    loss = criterion(logits, targets)
    confidence = mint.softmax(logits, -1).amax(-1).mean()
    return loss, confidence, logits


if FAULT:
    step = ms.value_and_grad(forward, None, optimizer.parameters)
else:
    step = ms.value_and_grad(forward, None, optimizer.parameters, has_aux=True)
losses = []
for number in range(30):
    rows = draw.integers(0, 448, 32)
    (loss, confidence, logits), grads = step(ms.Tensor(x[rows]), ms.Tensor(y[rows]))
    optimizer(grads)
    losses.append(loss.asnumpy())
    if number % 10 == 9:
        right = float((logits.asnumpy().argmax(1) == y[rows]).mean())
        print(f"step {number} confidence {float(confidence.asnumpy()):.3f} accuracy {right:.3f}")
net.set_train(False)
print("METRIC heldout", float(criterion(net(ms.Tensor(x[448:])), ms.Tensor(y[448:])).asnumpy()))
tell(net, losses)
