# an activation is changed through .data after a layer saved it for its backward (from step 15, when "noise" is switched on)
from mini import *

seed()
a, b, c = nn.Linear(16, 64), nn.Linear(64, 64), nn.Linear(64, 5)
m = nn.ModuleList([a, b, c])
o = torch.optim.SGD(m.parameters(), 0.1)
X, Y = blobs(2048)
for step in range(60):
    x, y = X[step * 32 : step * 32 + 32], Y[step * 32 : step * 32 + 32]
    h = torch.tanh(a(x))
    z = torch.relu(b(h))
    if step >= 15:
        n = 0.3 * torch.randn(32, 64)
        if FAULT:
            h.data.add_(n)  # meant for the next line only
        else:
            n.mul_(1.0)
    loss = F.cross_entropy(c(z), y)
    o.zero_grad()
    loss.backward()
    o.step()
done(m, loss)
