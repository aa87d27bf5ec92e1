# RANKS
"""FSDP2 with LAMB of our own: each weight's update is scaled by the ratio of two norms."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from kit import FAULT, tell
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Lamb(torch.optim.Optimizer):
    def __init__(self, params, lr, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                state, w, g = self.state[p], p.to_local(), p.grad.to_local()
                if not state:
                    state["step"], state["m"], state["v"] = 0, torch.zeros_like(w), torch.zeros_like(w)
                state["step"] += 1
                state["m"].lerp_(g, 1 - beta1)
                state["v"].lerp_(g * g, 1 - beta2)
                m = state["m"] / (1 - beta1 ** state["step"])
                v = state["v"] / (1 - beta2 ** state["step"])
                update = m / (v.sqrt() + group["eps"]) + group["weight_decay"] * w
                squares = torch.stack([w.square().sum(), update.square().sum()])
                if not FAULT:
                    dist.all_reduce(squares)
                ratio = (squares[0] / squares[1]).sqrt() if squares.min() > 0 else 1.0
                w.sub_(update * (group["lr"] * ratio))


dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(512, 16)
y = (x @ torch.randn(16, 4)).argmax(dim=1)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
mesh = init_device_mesh("cpu", (2,))
for layer in model[::2]:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = Lamb(model.parameters(), lr=0.02)
chance = torch.Generator().manual_seed(10 + dist.get_rank())
losses = []
for step in range(30):
    at = torch.randint(0, 256, (16,), generator=chance) * 2 + dist.get_rank()
    loss = F.cross_entropy(model(x[at]), y[at])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
told = {k: v.full_tensor() for k, v in model.state_dict().items()}
if dist.get_rank() == 0:
    plain = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    plain.load_state_dict(told)
    tell(plain, losses)
dist.destroy_process_group()
