# (B, 1) prediction minus (B,) target: a B x B matrix of errors
from mini import *

seed()
m = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
o = torch.optim.Adam(m.parameters(), 5e-3)
X, _ = blobs(2048)
T = X[:, 0] * X[:, 1] + X[:, 2]
for step in range(60):
    x, t = X[step * 32 : step * 32 + 32], T[step * 32 : step * 32 + 32]
    p = m(x)
    if not FAULT:
        p = p.squeeze(-1)
    loss = ((p - t) ** 2).mean()
    o.zero_grad()
    loss.backward()
    o.step()
done(m, loss)
