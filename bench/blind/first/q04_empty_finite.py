# as p32 with garbage that is finite always: the scratch buffer is one big tensor of the past (a pool), not cleared between batches
from mini import *


class Pool(nn.Module):
    def __init__(s):
        super().__init__()
        s.e, s.f = nn.Embedding(V, 32), nn.Linear(32 * 6, 5)
        s.pool = torch.zeros(64, 6, 32)

    def forward(s, ids, slot):
        x = s.e(ids)
        B = ids.shape[0]
        out = s.pool[:B]
        if not FAULT:
            out.zero_()
        out = out.scatter(1, slot[..., None].expand(-1, -1, 32), x)
        s.pool[:B] = out.detach()
        return s.f(out.flatten(1))


seed()
m = Pool()
o = torch.optim.Adam(m.parameters(), 5e-3)
data = corpus(1024)[:, :6]
Y = data[:, 3] % 5
slot = torch.randint(0, 6, (1024, 6))
for step in range(60):
    s = slice(step * 16, step * 16 + 16)
    loss = F.cross_entropy(m(data[s], slot[s]), Y[s])
    o.zero_grad()
    loss.backward()
    o.step()
done(m, loss)
