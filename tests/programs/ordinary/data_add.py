"""Polynomial regression of pytorch/examples: no optimizer, `param.data.add_` in the loop."""

from itertools import count

import torch
import torch.nn.functional as F

torch.manual_seed(0)
POLY_DEGREE = 4
W_target = torch.randn(POLY_DEGREE, 1)
b_target = torch.randn(1)


def make_features(x):
    x = x.unsqueeze(1)
    return torch.cat([x**i for i in range(1, POLY_DEGREE + 1)], 1)


def get_batch(batch_size=32):
    random = torch.rand(batch_size) * 2 - 1
    x = make_features(random)  # plant: data
    y = x.mm(W_target) + b_target.item()  # plant: target
    return x, y


fc = torch.nn.Linear(W_target.size(0), 1)
for batch_idx in count(1):  # turn
    batch_x, batch_y = get_batch()
    fc.zero_grad()
    prediction = fc(batch_x)  # plant: output
    output = F.smooth_l1_loss(prediction, batch_y)  # plant: loss
    loss = output.item()
    output.backward()
    for param in fc.parameters():
        param.data.add_(-0.1 * param.grad)
    print(batch_idx, loss)
    if loss < 1e-3 or batch_idx == 10:
        break
print("learned", fc.weight.view(-1).tolist(), fc.bias.tolist())
