from common import *

e = nn.EmbeddingBag(1000, 32, mode="sum", sparse=True).to(D)
h = nn.Linear(32, 5).to(D)
o = torch.optim.SparseAdam(e.parameters(), lr=1e-2)
p = torch.optim.Adagrad(h.parameters(), lr=1e-2)
for i in range(20):
    ids = torch.randint(0, 1000, (32, 10), generator=gen).to(D)
    y = ids.sum(1) % 5
    loss = F.cross_entropy(h(e(ids)), y)
    o.zero_grad()
    p.zero_grad()
    loss.backward()
    o.step()
    p.step()
    said(i, loss)
done(h)
