"""A character model with hand-written attention on raw tensors, without nn.Module (after Karpathy's lectures)."""

import torch
import torch.nn.functional as F

g = torch.Generator().manual_seed(2147483647)
text = "the quick brown fox jumps over the lazy dog and runs away from it "
chars = sorted(set(text))
stoi = {s: i for i, s in enumerate(chars)}
data = torch.tensor([stoi[c] for c in text * 4])
V, C, T, B = len(chars), 16, 8, 12
E = torch.randn((V, C), generator=g) * 0.2
P = torch.randn((T, C), generator=g) * 0.2
Wq, Wk, Wv = (torch.randn((C, C), generator=g) * C**-0.5 for _ in range(3))
Wo = torch.randn((C, V), generator=g) * C**-0.5
parameters = [E, P, Wq, Wk, Wv, Wo]
for p in parameters:
    p.requires_grad = True
mask = torch.tril(torch.ones(T, T)) == 0


def forward(idx):
    x = E[idx] + P  # plant: embedding
    q, k, v = x @ Wq, x @ Wk, x @ Wv
    att = q @ k.transpose(-2, -1) * C**-0.5  # plant: scores
    att = F.softmax(att.masked_fill(mask, float("-inf")), dim=-1)
    mixed = x + att @ v  # plant: mixed
    return mixed @ Wo


for i in range(8):  # turn
    ix = torch.randint(0, len(data) - T - 1, (B,), generator=g)
    Xb = torch.stack([data[j : j + T] for j in ix])
    Yb = torch.stack([data[j + 1 : j + T + 1] for j in ix])
    logits = forward(Xb)
    loss = F.cross_entropy(logits.view(-1, V), Yb.view(-1))  # plant: loss
    for p in parameters:
        p.grad = None
    loss.backward()
    for p in parameters:
        p.data += -0.5 * p.grad
    print(f"{i:7d}: {loss.item()}")
