# A transformer over image tokens that is told the class: its argument is named `labels`, and the loss asks for tokens
import torch, torch.nn as nn, torch.nn.functional as F
from c import seed, final

seed()


class M(nn.Module):
    def __init__(self, v=32, L=16, d=32):
        super().__init__()
        self.y = nn.Embedding(10, d)
        self.e = nn.Embedding(v, d)
        self.p = nn.Embedding(L, d)
        self.t = nn.TransformerEncoderLayer(d, 4, 64, 0.0, batch_first=True)
        self.h = nn.Linear(d, v)

    def forward(self, tokens, labels):
        x = torch.cat([self.y(labels)[:, None], self.e(tokens[:, :-1])], 1) + self.p.weight
        n = x.shape[1]
        return self.h(self.t(x, src_mask=nn.Transformer.generate_square_subsequent_mask(n), is_causal=True))


m = M()
o = torch.optim.AdamW(m.parameters(), 1e-3)
for step in range(30):
    y = torch.randint(10, (32,))
    x = (torch.arange(16)[None] * (y[:, None] + 1) + torch.randint(3, (32, 16))) % 32
    loss = F.cross_entropy(m(x, labels=y).flatten(0, 1), x.flatten())
    o.zero_grad()
    loss.backward()
    o.step()
final(loss, m)
