from common import *


class N(nn.Module):
    def forward(self, x):
        return x / x.std(-1, keepdim=True, unbiased=False)


class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.n, self.b = nn.Linear(32, 64), N(), nn.Linear(64, 10)

    def forward(self, x):
        return self.b(self.n(torch.relu(self.a(x))))


m = M().to(D)
c = torch.compile(m)
o = torch.optim.AdamW(m.parameters(), lr=1e-3, fused=True)
m.a.bias.data.fill_(0)
for i in range(8):
    x = torch.randn(16, 32, generator=gen).to(D)
    y = torch.randint(0, 10, (16,), generator=gen).to(D)
    if i == 5:
        with torch.no_grad():
            m.a.bias.fill_(-1e3)
    loss = F.cross_entropy(c(x), y)
    o.zero_grad()
    loss.backward()
    o.step()
    said(i, loss)
