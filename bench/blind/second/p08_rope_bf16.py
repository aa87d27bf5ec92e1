# rotary table made in the dtype of the model (bf16): positions above 256 are rounded
import torch, torch.nn as nn, torch.nn.functional as F
from c import FAULT, seed, final

seed()


class Rotary(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.register_buffer("inv_freq", 1 / 10000 ** (torch.arange(0, dim, 2).float() / dim), persistent=False)

    def forward(self, x):
        if FAULT:
            t = torch.arange(x.shape[-2], dtype=x.dtype)
        else:
            t = torch.arange(x.shape[-2], dtype=torch.float32)
        f = torch.outer(t, self.inv_freq.to(t.dtype))
        e = torch.cat([f, f], -1)
        return e.cos().to(x.dtype), e.sin().to(x.dtype)


def rotate(x):
    a, b = x.chunk(2, -1)
    return torch.cat([-b, a], -1)


class Attn(nn.Module):
    def __init__(self, d=32, h=2):
        super().__init__()
        self.h = h
        self.q = nn.Linear(d, d)
        self.k = nn.Linear(d, d)
        self.v = nn.Linear(d, d)
        self.o = nn.Linear(d, d)
        self.rope = Rotary(d // h)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (m(x).view(b, t, self.h, -1).transpose(1, 2) for m in (self.q, self.k, self.v))
        c, s = self.rope(q)
        q = q * c + rotate(q) * s
        k = k * c + rotate(k) * s
        return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))


class LM(nn.Module):
    def __init__(self, v=32, d=32):
        super().__init__()
        self.emb = nn.Embedding(v, d)
        self.attn = Attn(d)
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, v)

    def forward(self, x):
        h = self.emb(x)
        h = h + self.attn(h)
        return self.head(self.norm(h))


model = LM().bfloat16()
opt = torch.optim.AdamW(model.parameters(), 1e-3)
g = torch.Generator().manual_seed(1)
for step in range(20):
    x = torch.randint(0, 32, (4, 1025), generator=g)
    loss = F.cross_entropy(model(x[:, :-1]).float().reshape(-1, 32), x[:, 1:].reshape(-1))
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item())
final(loss, model)
