"""DP-SGD: gradients per sample by vmap, clipped one by one, with noise; .grad is set by hand."""

import torch
import torch.nn.functional as F
from kit import tell
from torch import nn
from torch.func import functional_call, grad, vmap

CLIP, NOISE, B = 1.0, 0.4, 32

torch.manual_seed(0)
x = torch.randn(512, 16)
y = (x @ torch.randn(16, 3)).argmax(dim=1)
model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)


def loss_of_one(params, sample, target):
    out = functional_call(model, params, (sample[None],))
    return F.cross_entropy(out, target[None])


per_sample = vmap(grad(loss_of_one), in_dims=(None, 0, 0))
losses = []
for step in range(40):
    at = torch.randint(0, len(x), (B,))
    params = {k: v.detach() for k, v in model.named_parameters()}
    grads = per_sample(params, x[at], y[at])
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
    factor = (CLIP / norms).clamp(max=1.0)
    for name, p in model.named_parameters():
        total = torch.einsum("b,b...->...", factor, grads[name])
        p.grad = (total + NOISE * CLIP * torch.randn_like(total)) / B
    optimizer.step()
    with torch.no_grad():
        losses.append(F.cross_entropy(model(x[at]), y[at]).item())
tell(model, losses)
