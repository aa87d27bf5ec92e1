# right: BYOL with a target by EMA, stop-gradient, cosine momentum, no weight decay on norms
import copy, math, torch, torch.nn as nn, torch.nn.functional as F
from c import seed, final

seed()
enc = nn.Sequential(nn.Linear(24, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 16))
pred = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16))
target = copy.deepcopy(enc).requires_grad_(False)
m = nn.ModuleList([enc, pred])
opt = torch.optim.AdamW(
    [
        {"params": [p for p in m.parameters() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in m.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ],
    2e-3,
)
g = torch.Generator().manual_seed(1)
for step in range(30):
    x = torch.randn(64, 24, generator=g)
    a, b = x + 0.2 * torch.randn(64, 24, generator=g), x + 0.2 * torch.randn(64, 24, generator=g)
    with torch.no_grad():
        ta, tb = target(a), target(b)
    loss = 2 - F.cosine_similarity(pred(enc(a)), tb).mean() - F.cosine_similarity(pred(enc(b)), ta).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item())
    tau = 1 - 0.01 * (math.cos(math.pi * step / 30) + 1) / 2
    with torch.no_grad():
        for t, p in zip(target.parameters(), enc.parameters()):
            t.mul_(tau).add_(p, alpha=1 - tau)
final(loss, m, target)
