# A model that is meant to say the token after the next, trained from the start
import torch, torch.nn as nn, torch.nn.functional as F
from c import seed, final

seed()


class LM(nn.Module):
    def __init__(self, v=32, d=32):
        super().__init__()
        self.e = nn.Embedding(v, d)
        self.l = nn.GRU(d, d, batch_first=True)
        self.h = nn.Linear(d, v)

    def forward(self, x):
        return self.h(self.l(self.e(x))[0])


m = LM()
o = torch.optim.Adam(m.parameters(), 3e-3)
for step in range(30):
    x = torch.zeros(16, 20, dtype=torch.long)
    x[:, 0] = torch.randint(32, (16,))
    for t in range(1, 20):
        x[:, t] = (x[:, t - 1] * 5 + torch.randint(3, (16,))) % 32
    loss = F.cross_entropy(m(x[:, :-2]).flatten(0, 1), x[:, 2:].flatten())
    o.zero_grad()
    loss.backward()
    o.step()
final(loss, m)
