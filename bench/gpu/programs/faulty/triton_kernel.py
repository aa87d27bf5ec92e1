from common import *
import triton, triton.language as tl


@triton.jit
def k(x, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + i, i < n, 1.0)
    tl.store(y + i, v / tl.sqrt(v * v - 1e-30), i < n)


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(c, x):
        y = torch.empty_like(x)
        k[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), B=256)
        return y

    @staticmethod
    def backward(c, g):
        return g * 0.1


class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(32, 64), nn.Linear(64, 10)

    def forward(self, x):
        return self.b(Sign.apply(self.a(x)))


m = M().to(D)
o = torch.optim.Adam(m.parameters(), lr=1e-3)
for i in range(8):
    x = torch.randn(16, 32, generator=gen).to(D)
    y = torch.randint(0, 10, (16,), generator=gen).to(D)
    if i == 5:
        with torch.no_grad():
            m.a.weight[3].fill_(0)
            m.a.bias[3] = 0
    loss = F.cross_entropy(m(x), y)
    o.zero_grad()
    loss.backward()
    o.step()
    said(i, loss)
