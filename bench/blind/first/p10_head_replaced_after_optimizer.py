# the head is replaced for the new task after the optimizer was made: the new head never learns, the old one is stepped
from mini import *

seed()
m = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def opt():
    return torch.optim.AdamW(m.parameters(), 3e-3)


if FAULT:
    o = opt()
m[4] = nn.Linear(64, 5)
if not FAULT:
    o = opt()
X, Y = blobs(2048)
for step in range(60):
    x, y = X[step * 32 : step * 32 + 32], Y[step * 32 : step * 32 + 32]
    loss = F.cross_entropy(m(x), y)
    o.zero_grad()
    loss.backward()
    o.step()
done(m, loss)
