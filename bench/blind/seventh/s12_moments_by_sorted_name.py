"""A language model that is stopped, saved, and taken up again in a new object."""

import io

import torch
from kit import FAULT, metric, tell, words
from torch import nn

torch.manual_seed(12)
VOCAB, WIDTH, LENGTH = 32, 32, 12
data = words(512, LENGTH + 1, VOCAB, seed=12)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.k_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.v_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.o_proj = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        q, k, v = (m(x).unflatten(-1, (4, -1)).transpose(1, 2) for m in (self.q_proj, self.k_proj, self.v_proj))
        out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = Attention()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.norm = nn.RMSNorm(WIDTH)

    def forward(self, tokens):
        x = self.embed(tokens)
        return self.head(self.norm(x + self.attn(x)))


def loss_of(model, tokens):
    return nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def train(model, optimizer, first, last, losses):
    for step in range(first, last):
        g = torch.Generator().manual_seed(1000 + step)
        loss = loss_of(model, data[torch.randint(448, (16,), generator=g)])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())


def resume(file):
    saved = torch.load(file)
    model = Model()
    model.load_state_dict(saved["model"])
    if FAULT:
        params = [p for _, p in sorted(model.named_parameters())]
    else:
        params = [p for _, p in model.named_parameters()]
    optimizer = torch.optim.AdamW(params, lr=5e-3)
    optimizer.load_state_dict(saved["optimizer"])
    return model, optimizer, saved["step"]


losses = []
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
train(model, optimizer, 0, 24, losses)
file = io.BytesIO()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 24}, file)
file.seek(0)
model, optimizer, step = resume(file)
train(model, optimizer, step, 60, losses)
with torch.no_grad():
    metric("loss", loss_of(model, data[448:]))
tell(model, losses)
