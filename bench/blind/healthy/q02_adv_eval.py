# Classifier; after training its robustness is measured by PGD whose gradients come from loss.backward()
import torch, torch.nn as nn, torch.nn.functional as F
from c import seed, final

seed()
m = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
o = torch.optim.SGD(m.parameters(), 0.1, momentum=0.9)
W = torch.randn(16, 4)


def attack(x, y, n=10):
    d = torch.zeros_like(x, requires_grad=True)
    for _ in range(n):
        F.cross_entropy(m(x + d), y).backward()
        d.data = (d + 0.02 * d.grad.sign()).clamp(-0.1, 0.1)
        d.grad.zero_()
    return (x + d).detach()


for step in range(60):
    x = torch.randn(64, 16)
    y = (x @ W).argmax(1)
    loss = F.cross_entropy(m(x), y)
    o.zero_grad()
    loss.backward()
    o.step()
m.eval()
ok = 0
for _ in range(5):
    x = torch.randn(64, 16)
    y = (x @ W).argmax(1)
    ok += (m(attack(x, y)).argmax(1) == y).sum().item()
print("robust", ok)
final(loss, m)
