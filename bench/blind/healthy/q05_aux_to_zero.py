# Deep supervision whose weight goes to nothing: the auxiliary head is called to the end, its loss counts no more
import torch, torch.nn as nn, torch.nn.functional as F
from c import seed, final

seed()


class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 32), nn.Linear(32, 32)
        self.aux, self.head = nn.Linear(32, 4), nn.Linear(32, 4)

    def forward(self, x):
        h = F.relu(self.a(x))
        return self.head(F.relu(self.b(h))), self.aux(h)


m = M()
o = torch.optim.AdamW(m.parameters(), 1e-3)
W = torch.randn(16, 4)
for step in range(120):
    x = torch.randn(64, 16)
    y = (x @ W).argmax(1)
    out, aux = m(x)
    w = max(0.0, 0.4 * (1 - step / 60))
    loss = F.cross_entropy(out, y) + w * F.cross_entropy(aux, y)
    o.zero_grad()
    loss.backward()
    o.step()
final(loss, m)
