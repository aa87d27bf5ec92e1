"""A head is replaced mid-run (new classes arrive), with its new parameters in the optimizer and the old ones' moments dropped."""

import torch
from kit import metric, tell
from torch import nn

torch.manual_seed(405)
x = torch.randn(1280, 20)
y = (torch.tanh(x @ torch.randn(20, 16)) @ torch.randn(16, 9)).argmax(dim=1)
trunk = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.Linear(64, 32), nn.GELU())
model = nn.ModuleDict({"trunk": trunk, "head": nn.Linear(32, 5)})
optimizer = torch.optim.AdamW(
    [{"params": list(trunk.parameters())}, {"params": list(model["head"].parameters()), "lr": 6e-3}], lr=3e-3
)


def widen(classes):
    old = model["head"]
    new = nn.Linear(32, classes)
    with torch.no_grad():
        new.weight[: old.out_features] = old.weight
        new.bias[: old.out_features] = old.bias
    for p in old.parameters():
        optimizer.state.pop(p, None)
    model["head"] = new
    optimizer.param_groups[1]["params"] = list(new.parameters())


losses = []
known = 5
g = torch.Generator().manual_seed(1)
for step in range(60):
    if step == 30:
        known = 9
        widen(known)
    pool = (y[:1152] < known).nonzero().flatten()
    index = pool[torch.randint(len(pool), (32,), generator=g)]
    loss = nn.functional.cross_entropy(model["head"](trunk(x[index])), y[index])
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
with torch.no_grad():
    metric("heldout_loss", nn.functional.cross_entropy(model["head"](trunk(x[1152:])), y[1152:]))
tell(model, losses)
