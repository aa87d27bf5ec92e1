# batch norms of odd kinds: momentum None, no running statistics, frozen from a certain step on, statistics reset and re-estimated, one in a branch that is rarely used; instance norm; weight standardisation
import torch, torch.nn as nn, torch.nn.functional as F
from c import seed, final

seed()


class M(nn.Module):
    def __init__(s):
        super().__init__()
        s.a, s.b, s.c = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 4)
        s.n1, s.n2, s.n3 = (
            nn.BatchNorm1d(32, momentum=None),
            nn.BatchNorm1d(32, track_running_stats=False),
            nn.BatchNorm1d(32),
        )

    def forward(s, x, rare=False):
        h = s.n1(s.a(x)).relu()
        w = s.b.weight
        w = (w - w.mean(1, True)) / (w.std(1, keepdim=True) + 1e-5)
        h = s.n2(F.linear(h, w, s.b.bias)).relu()
        return s.c(s.n3(h) if rare else h)


m = M()
opt = torch.optim.SGD(m.parameters(), 0.05, momentum=0.9)
for step in range(60):
    if step == 30:
        m.n1.reset_running_stats()
    if step == 45:
        m.n1.eval()
    x = torch.randn(32, 16)
    loss = F.cross_entropy(m(x, step % 9 == 0), x[:, :4].argmax(1))
    opt.zero_grad()
    loss.backward()
    opt.step()
final(loss, m)
