# Momentum kept in .grad: instead of zero_grad() gradients are multiplied by 0.9, and updated by hand
import torch, torch.nn as nn, torch.nn.functional as F
from c import seed, final

seed()
m = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
o = torch.optim.SGD(m.parameters(), 0.02)
W = torch.randn(16, 4)
for step in range(80):
    x = torch.randn(64, 16)
    y = (x @ W).argmax(1)
    loss = F.cross_entropy(m(x), y)
    loss.backward()
    o.step()
    with torch.no_grad():
        for p in m.parameters():
            p.grad.mul_(0.9)
final(loss, m)
