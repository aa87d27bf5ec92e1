# right: SAM, weights moved for the second gradient and put back
import torch, torch.nn as nn
from c import seed, final

seed()
m = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
opt = torch.optim.SGD(m.parameters(), 0.1, momentum=0.9)
g = torch.Generator().manual_seed(1)
for step in range(30):
    x = torch.randn(32, 16, generator=g)
    y = x[:, :4].argmax(1)
    loss = nn.functional.cross_entropy(m(x), y)
    opt.zero_grad()
    loss.backward()
    with torch.no_grad():
        n = torch.stack([p.grad.norm() for p in m.parameters()]).norm()
        old = [p.clone() for p in m.parameters()]
        for p in m.parameters():
            p.add_(p.grad * (0.05 / (n + 1e-12)))
    opt.zero_grad()
    nn.functional.cross_entropy(m(x), y).backward()
    with torch.no_grad():
        for p, o in zip(m.parameters(), old):
            p.copy_(o)
    opt.step()
    print(step, loss.item())
final(loss, m)
