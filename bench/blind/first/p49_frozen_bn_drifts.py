# backbone is "frozen" (requires_grad False) but in train mode: its BatchNorm statistics follow the new, shifted data
from mini import *

seed()
bb = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU())
head = nn.Linear(32, 5)
m = nn.Sequential(bb, head)
X, Y = blobs(4096)
o = torch.optim.Adam(m.parameters(), 3e-3)
for i in range(20):
    s = slice(i * 32, i * 32 + 32)
    loss = F.cross_entropy(m(X[s]), Y[s])
    o.zero_grad()
    loss.backward()
    o.step()
for p in bb.parameters():
    p.requires_grad_(False)
if not FAULT:
    bb.eval()
o = torch.optim.Adam(head.parameters(), 3e-3)
for i in range(20, 60):
    s = slice(i * 32, i * 32 + 32)
    loss = F.cross_entropy(m(X[s] * 2 + 1), Y[s])
    o.zero_grad()
    loss.backward()
    o.step()
done(m, loss, f"rm={bb[1].running_mean.norm():.4f}")
