from common import *


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 64), nn.Linear(64, 4)

    def forward(self, x, e):
        for l in (self.a, self.b):
            x = l(x)
            x = torch.zeros_like(x).index_add(0, e[1], x[e[0]]) / 8
            x = F.relu(x) if l is self.a else x
        return x


m = GCN().to(D)
o = torch.optim.Adam(m.parameters(), lr=1e-2)
x = torch.randn(2000, 16, generator=gen).to(D)
e = torch.randint(0, 2000, (2, 16000), generator=gen).to(D)
y = torch.randint(0, 4, (2000,), generator=gen).to(D)
for i in range(30):
    loss = F.cross_entropy(m(x, e), y)
    o.zero_grad()
    loss.backward()
    o.step()
    said(i, loss)
done(m)
