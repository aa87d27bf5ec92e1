"""Right: Muon (orthogonalised momentum) for the matrices, AdamW for the rest, rates warmed up apart."""

import torch
import torch.nn.functional as F
from kit import metric, tell
from torch import nn


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr, momentum=0.9):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                buffer = state.setdefault("momentum", torch.zeros_like(p))
                buffer.mul_(group["momentum"]).add_(p.grad)
                update = p.grad + group["momentum"] * buffer
                z = update / (update.norm() + 1e-7)
                for _ in range(5):
                    a = z @ z.T
                    z = 3.4445 * z + (-4.7750 * a + 2.0315 * a @ a) @ z
                p.add_(z, alpha=-group["lr"] * max(1.0, p.shape[0] / p.shape[1]) ** 0.5)


torch.manual_seed(0)
x = torch.randn(640, 16)
y = (x @ torch.randn(16, 4)).argmax(dim=1)
model = nn.Sequential(nn.Linear(16, 48), nn.LayerNorm(48), nn.GELU(), nn.Linear(48, 32), nn.GELU(), nn.Linear(32, 4))
matrices = [model[0].weight, model[3].weight]
others = [p for p in model.parameters() if all(p is not m for m in matrices)]
optimizers = [Muon(matrices, lr=0.02), torch.optim.AdamW(others, lr=3e-3, betas=(0.8, 0.95))]
schedules = [
    torch.optim.lr_scheduler.LambdaLR(optimizers[0], lambda step: min(1.0, (step + 1) / 10)),
    torch.optim.lr_scheduler.LambdaLR(optimizers[1], lambda step: min(1.0, (80 - step) / 20)),
]
losses = []
for step in range(80):
    at = torch.randint(0, 512, (32,))
    loss = F.cross_entropy(model(x[at]), y[at])
    model.zero_grad()
    loss.backward()
    for optimizer, schedule in zip(optimizers, schedules, strict=True):
        optimizer.step()
        schedule.step()
    losses.append(loss.item())
metric("loss", F.cross_entropy(model(x[512:]), y[512:]))
tell(model, losses)
