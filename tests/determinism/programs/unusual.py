"""Tensors without ordinary values, transforms, tracing, other modes: a program that is seeded and repeats itself."""

import warnings

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call, grad, jacrev, vmap
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

warnings.simplefilter("ignore")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
weights = {name: weight.detach() for name, weight in model.named_parameters()}
vmap(grad(lambda p, x: functional_call(model, p, (x,)).sum()), (None, 0))(weights, torch.randn(5, 4))
jacrev(lambda x: (x**2).sum())(torch.ones(3))
torch.jit.trace(model, torch.ones(2, 4))
with FakeTensorMode():
    torch.empty(3, 3) @ torch.ones(3, 3)
with torch.device("meta"):
    nn.Linear(4, 4)
torch.eye(4).to_sparse() @ torch.ones(4, 2)
torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.quint8)
torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)]) + 1
(torch.randn(4, dtype=torch.complex64).conj() * 2).imag.neg()
torch.ones(2, 4, dtype=torch.bfloat16).t().neg()
torch.ones(5).expand(3, 5).sum()
with FlopCounterMode(display=False), torch.inference_mode():
    model(torch.ones(2, 4))
freed = torch.ones(4)
freed.untyped_storage().resize_(0)
for _ in range(3):
    loss = checkpoint(model, torch.ones(3, 4, requires_grad=True), use_reentrant=False).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
