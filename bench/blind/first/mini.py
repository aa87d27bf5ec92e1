"""Shared toy parts: a Markov corpus, a small GPT, a small classifier data set."""

import os, math, random
import numpy as np, torch, torch.nn as nn, torch.nn.functional as F

FAULT = os.environ.get("FAULT", "1") != "0"
DEVICE = os.environ.get("BLIND_DEVICE", "cpu")
torch.set_num_threads(1)
if DEVICE != "cpu":
    torch.set_default_device(DEVICE)
V = 48


def seed(n=0):
    random.seed(n)
    np.random.seed(n)
    torch.manual_seed(n)


def corpus(n, T=24, s=1):
    g = torch.Generator(DEVICE).manual_seed(s)
    table = torch.randint(2, V, (V, 3), generator=torch.Generator(DEVICE).manual_seed(99))
    x = torch.randint(2, V, (n, 1), generator=g)
    rows = [x]
    for _ in range(T):
        k = torch.randint(0, 3, (n,), generator=g)
        rows.append(table[rows[-1][:, 0], k][:, None])
    return torch.cat(rows, 1)


def blobs(n, d=16, c=5, s=1):
    g = torch.Generator(DEVICE).manual_seed(s)
    W = torch.randn(c, d, generator=torch.Generator(DEVICE).manual_seed(98))
    y = torch.randint(0, c, (n,), generator=g)
    return W[y] + 1.0 * torch.randn(n, d, generator=g), y


class Block(nn.Module):
    def __init__(s, d, h, p=0.0):
        super().__init__()
        s.h, s.p = h, p
        s.ln1, s.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        s.qkv, s.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        s.fc, s.out = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        s.drop = nn.Dropout(p)

    def attend(s, q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)

    def forward(s, x, mask=None):
        B, T, C = x.shape
        q, k, v = s.qkv(s.ln1(x)).view(B, T, 3, s.h, C // s.h).permute(2, 0, 3, 1, 4)
        a = s.attend(q, k, v, mask).transpose(1, 2).reshape(B, T, C)
        x = x + s.drop(s.proj(a))
        return x + s.drop(s.out(F.gelu(s.fc(s.ln2(x)))))


class GPT(nn.Module):
    def __init__(s, d=32, h=4, L=2, p=0.0, T=64, block=Block, tie=False):
        super().__init__()
        s.tok, s.pos = nn.Embedding(V, d), nn.Embedding(T, d)
        s.blocks = nn.ModuleList(block(d, h, p) for _ in range(L))
        s.ln, s.head = nn.LayerNorm(d), nn.Linear(d, V, bias=False)
        if tie:
            s.head.weight = s.tok.weight

    def forward(s, ids, mask=None, pos=None):
        if pos is None:
            pos = torch.arange(ids.shape[1])
        x = s.tok(ids) + s.pos(pos)
        for b in s.blocks:
            x = b(x, mask)
        return s.head(s.ln(x))


def lm_loss(logits, y):
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1), ignore_index=-100)


def done(model, loss, extra=""):
    w = sum(p.detach().double().pow(2).sum().item() for p in model.parameters()) ** 0.5
    print(f"FINAL loss={loss.item() if torch.is_tensor(loss) else loss:.6f} |w|={w:.6f} {extra}", flush=True)
