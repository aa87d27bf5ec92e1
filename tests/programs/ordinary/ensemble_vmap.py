"""Train an ensemble of networks at once with stack_module_state, vmap and grad; updates are made by tree_map."""

import copy

import torch
from torch import nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap

torch.manual_seed(0)
models = [nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2)) for _ in range(4)]
params, buffers = stack_module_state(models)
params = {name: p.detach() for name, p in params.items()}
base = copy.deepcopy(models[0]).to("meta")


def compute_loss(params, buffers, x, y):
    logits = functional_call(base, (params, buffers), (x,))  # plant: output
    loss = nn.functional.cross_entropy(logits, y)  # plant: loss
    return loss


points = torch.randn(64, 2)
labels = (points[:, 0] * points[:, 1] > 0).long()
step_fn = vmap(grad_and_value(compute_loss), in_dims=(0, 0, None, None))
for epoch in range(8):  # turn
    inputs = points * 1.5  # plant: data
    grads, losses = step_fn(params, buffers, inputs, labels)  # plant: losses losses
    params = {name: params[name] - 0.5 * grads[name] for name in params}
    print(epoch, losses.tolist())
