# Reptile: an inner SGD on a copy, the meta-gradient is written as the difference of weights into .grad
import copy, torch, torch.nn as nn, torch.nn.functional as F
from c import seed, final

seed()
net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))
opt = torch.optim.Adam(net.parameters(), 1e-2)
for step in range(30):
    fast = copy.deepcopy(net)
    inner = torch.optim.SGD(fast.parameters(), 0.02)
    amp = torch.rand(()) * 4
    for _ in range(5):
        x = torch.rand(10, 1) * 6 - 3
        loss = F.mse_loss(fast(x), amp * x.sin())
        inner.zero_grad()
        loss.backward()
        inner.step()
    for p, q in zip(net.parameters(), fast.parameters()):
        p.grad = p.data - q.data
    opt.step()
final(loss, net)
