# small GPT: triu diagonal of the causal mask
import torch, torch.nn as nn, torch.nn.functional as F
from c import FAULT, seed, final

seed()


class Block(nn.Module):
    def __init__(self, d=32, h=4):
        super().__init__()
        self.h = h
        self.n1 = nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d)
        self.proj = nn.Linear(d, d)
        self.n2 = nn.LayerNorm(d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        mask = torch.triu(torch.ones(t, t, dtype=torch.bool), diagonal=2 if FAULT else 1)
        a = (q @ k.transpose(-1, -2) / (d // self.h) ** 0.5).masked_fill(mask, float("-inf")).softmax(-1)
        x = x + self.proj((a @ v).transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.n2(x))


class GPT(nn.Module):
    def __init__(self, v=50, d=32, t=32):
        super().__init__()
        self.tok = nn.Embedding(v, d)
        self.pos = nn.Embedding(t, d)
        self.blocks = nn.ModuleList(Block(d) for _ in range(2))
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, v, bias=False)

    def forward(self, x):
        h = self.tok(x) + self.pos(torch.arange(x.shape[1]))
        for b in self.blocks:
            h = b(h)
        return self.head(self.norm(h))


model = GPT()
opt = torch.optim.AdamW(model.parameters(), 3e-3)
g = torch.Generator().manual_seed(1)
for step in range(40):
    x = torch.randint(0, 50, (16, 25), generator=g)
    loss = F.cross_entropy(model(x[:, :-1]).reshape(-1, 50), x[:, 1:].reshape(-1))
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item())
final(loss, model)
