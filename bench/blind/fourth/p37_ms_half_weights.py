# MINDSPORE
"""MindSpore: the net is cast to float16 after the optimizer was chosen for float32: updates below half an ulp are lost."""

import mindspore as ms
import numpy as np
from mindspore import nn
from ms_kit import FAULT, tell

ms.set_seed(37)
ms.set_context(mode=ms.PYNATIVE_MODE)
net = nn.SequentialCell(nn.Dense(16, 64), nn.LayerNorm((64,)), nn.GELU(), nn.Dense(64, 64), nn.GELU(), nn.Dense(64, 1))
for name, p in net.parameters_and_names():
    if name.endswith("gamma"):
        p.set_data(p * 4)
if FAULT:
    net.to_float(ms.float16)
    for p in net.get_parameters():
        p.set_dtype(ms.float16)
optimizer = nn.SGD(net.trainable_params(), learning_rate=1e-4)
criterion = nn.MSELoss()
step = ms.value_and_grad(lambda x, y: criterion(net(x).float(), y), None, optimizer.parameters)
draw = np.random.default_rng(5)
truth = draw.normal(size=(16, 1)).astype(np.float32)
losses = []
for _ in range(40):
    x = draw.normal(size=(32, 16)).astype(np.float32)
    y = ms.Tensor(np.tanh(x @ truth))
    loss, grads = step(ms.Tensor(x.astype(np.float16 if FAULT else np.float32)), y)
    optimizer(grads)
    losses.append(loss.asnumpy())
tell(net, losses)
