# SAM by hand with batch norm whose momentum is zeroed in the second pass
import torch, torch.nn as nn, torch.nn.functional as F
from c import seed, final

seed()
m = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))
opt = torch.optim.SGD(m.parameters(), 0.05, momentum=0.9)
for step in range(50):
    x = torch.randn(32, 16)
    y = x[:, :4].argmax(1)
    F.cross_entropy(m(x), y).backward()
    n = torch.stack([p.grad.norm() for p in m.parameters()]).norm()
    es = []
    with torch.no_grad():
        for p in m.parameters():
            e = p.grad * (0.05 / (n + 1e-12))
            p.add_(e)
            es.append(e)
    opt.zero_grad()
    m[1].momentum = 0.0
    loss = F.cross_entropy(m(x), y)
    loss.backward()
    m[1].momentum = 0.1
    with torch.no_grad():
        for p, e in zip(m.parameters(), es):
            p.sub_(e)
    opt.step()
    opt.zero_grad()
final(loss, m)
