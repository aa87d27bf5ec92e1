# a prefetcher fills one numpy buffer; from step 15 it fetches the next batch before backward (numpy writes aren't seen by autograd)
from mini import *

seed()
m = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 5))
o = torch.optim.SGD(m.parameters(), 0.1)
X, Y = blobs(4096)
X = X.numpy()
buf = np.empty((32, 16), np.float32)
x = torch.from_numpy(buf)


def fetch(i):
    buf[:] = X[i * 32 : i * 32 + 32]


fetch(0)
for step in range(60):
    loss = F.cross_entropy(m(x), Y[step * 32 : step * 32 + 32])
    o.zero_grad()
    early = FAULT and step >= 15
    if early:
        fetch(step + 1)
    loss.backward()
    o.step()
    if not early:
        fetch(step + 1)
done(m, loss)
