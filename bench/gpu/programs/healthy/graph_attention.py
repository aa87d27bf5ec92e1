from common import *
from torch_geometric.nn import GCNConv, GATConv


class N(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = GCNConv(16, 64), GATConv(64, 4, heads=2, concat=False)

    def forward(self, x, e):
        return self.b(F.dropout(F.relu(self.a(x, e)), 0.5, self.training), e)


m = N().to(D)
o = torch.optim.Adam(m.parameters(), lr=1e-2, weight_decay=5e-4)
x = torch.randn(2000, 16, generator=gen).to(D)
e = torch.randint(0, 2000, (2, 16000), generator=gen).to(D)
y = torch.randint(0, 4, (2000,), generator=gen).to(D)
for i in range(30):
    m.train()
    loss = F.cross_entropy(m(x, e)[:500], y[:500])
    o.zero_grad()
    loss.backward()
    o.step()
    said(i, loss)
    if i % 5 == 0:
        m.eval()
        with torch.no_grad():
            (m(x, e).argmax(1) == y).float().mean().item()
done(m)
