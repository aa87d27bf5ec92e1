# BPR matrix factorisation as LightFM has it: biases of users and items, the user's cancels out of the difference
import torch, torch.nn as nn, torch.nn.functional as F
from c import seed, final

seed()


class MF(nn.Module):
    def __init__(self, nu, ni, d=8):
        super().__init__()
        self.u, self.i = nn.Embedding(nu, d), nn.Embedding(ni, d)
        self.of_user, self.of_item = nn.Embedding(nu, 1), nn.Embedding(ni, 1)
        nn.init.normal_(self.u.weight, std=0.1)
        nn.init.normal_(self.i.weight, std=0.1)
        nn.init.zeros_(self.of_user.weight)
        nn.init.zeros_(self.of_item.weight)

    def forward(self, u, i):
        return (self.u(u) * self.i(i)).sum(-1) + self.of_user(u).squeeze(-1) + self.of_item(i).squeeze(-1)


m = MF(50, 80)
o = torch.optim.Adam(m.parameters(), 1e-2)
for step in range(60):
    u, p, n = torch.randint(50, (64,)), torch.randint(40, (64,)), torch.randint(80, (64,))
    loss = -F.logsigmoid(m(u, p) - m(u, n)).mean()
    o.zero_grad()
    loss.backward()
    o.step()
final(loss, m)
