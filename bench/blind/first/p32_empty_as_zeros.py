# a scratch tensor is torch.empty where zeros is meant: rows without a token keep what the memory held
from mini import *


class Pool(nn.Module):
    def __init__(s):
        super().__init__()
        s.e, s.f = nn.Embedding(V, 32), nn.Linear(32 * 6, 5)

    def forward(s, ids, slot):
        x = s.e(ids)
        B = ids.shape[0]
        junk = torch.rand(B, 6, 32)
        del junk  # what the allocator will hand out again
        out = torch.empty(B, 6, 32).clamp(-9, 9).nan_to_num(0) if FAULT else torch.zeros(B, 6, 32)
        out = out.scatter(1, slot[..., None].expand(-1, -1, 32), x)
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
