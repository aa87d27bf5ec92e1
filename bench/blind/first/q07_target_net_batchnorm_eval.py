# label smoothing applied twice and, from step 20, class weights indexed by prediction rather than by label
from mini import *

seed()
m = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 5))
o = torch.optim.Adam(m.parameters(), 3e-3)
X, Y = blobs(2048)
w = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
for step in range(60):
    s = slice(step * 32, step * 32 + 32)
    z = m(X[s])
    l = F.cross_entropy(z, Y[s], reduction="none")
    k = z.argmax(1) if FAULT and step >= 20 else Y[s]
    loss = (l * w[k]).sum() / w[k].sum()
    o.zero_grad()
    loss.backward()
    o.step()
done(m, loss)
