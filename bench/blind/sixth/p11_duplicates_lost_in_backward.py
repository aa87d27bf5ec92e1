"""A bag-of-words classifier whose embedding bag is an autograd function of our own."""

import torch
import torch.nn.functional as F
from kit import FAULT, metric, tell
from torch import nn


class BagFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight, ids):
        ctx.save_for_backward(ids)
        ctx.shape = weight.shape
        return weight[ids].mean(dim=1)

    @staticmethod
    def backward(ctx, grad):
        (ids,) = ctx.saved_tensors
        out = grad.new_zeros(ctx.shape)
        each = (grad / ids.shape[1])[:, None].expand(-1, ids.shape[1], -1)
        if FAULT:
            out[ids] += each
        else:
            out.index_put_((ids,), each, accumulate=True)
        return out, None


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(60, 24) * 0.3)
        self.head = nn.Linear(24, 4)

    def forward(self, ids):
        return self.head(BagFunction.apply(self.weight, ids))


torch.manual_seed(0)
y = torch.randint(0, 4, (1024,))
common = torch.randint(0, 60, (1024, 10))
ids = torch.where(torch.rand(1024, 10) < 0.3, y[:, None] * 10 + common % 10, common)
model = Bag()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
losses = []
for step in range(120):
    at = torch.randint(0, 896, (64,))
    loss = F.cross_entropy(model(ids[at]), y[at])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
with torch.no_grad():
    metric("loss", F.cross_entropy(model(ids[896:]), y[896:]))
tell(model, losses)
