"""Encoder-decoder: the decoder gets the target itself, not shifted right."""

import torch
import torch.nn.functional as F
from torch import nn
from c import FAULT, finish

torch.manual_seed(0)
V, BOS = 30, 1


class Seq2Seq(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.src, self.tgt = nn.Embedding(V, d), nn.Embedding(V, d)
        self.pos = nn.Parameter(torch.randn(1, 16, d) * 0.1)
        self.tr = nn.Transformer(d, 2, 1, 1, 64, dropout=0.0, batch_first=True)
        self.out = nn.Linear(d, V)

    def forward(self, src, dec_in):
        L = dec_in.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(L)
        h = self.tr(
            self.src(src) + self.pos[:, : src.shape[1]],
            self.tgt(dec_in) + self.pos[:, :L],
            tgt_mask=mask,
            tgt_is_causal=True,
        )
        return self.out(h)


def shift_right(y):
    return torch.cat([torch.full((len(y), 1), BOS), y[:, :-1]], 1)


model = Seq2Seq()
opt = torch.optim.Adam(model.parameters(), 2e-3)
losses = []
for step in range(50):
    src = torch.randint(2, V, (16, 8))
    y = src.flip(1)
    dec_in = y if FAULT else shift_right(y)  # FAULT: the answer is the input
    loss = F.cross_entropy(model(src, dec_in).flatten(0, 1), y.flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
finish(losses, model)
