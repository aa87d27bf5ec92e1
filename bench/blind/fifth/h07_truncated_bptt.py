"""Truncated BPTT: row i of each batch goes on where row i of the last one ended, and the state is carried on."""

import torch
import torch.nn.functional as F
from kit import tell, words
from torch import nn

V, D, T, B = 36, 48, 8, 12

torch.manual_seed(0)
streams = words(B, T * 40 + 1, V)
model = nn.ModuleDict({"tok": nn.Embedding(V, D), "rnn": nn.LSTM(D, D, batch_first=True), "head": nn.Linear(D, V)})
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
state = None
losses = []
for step in range(40):
    ids = streams[:, step * T : step * T + T + 1]
    out, state = model["rnn"](model["tok"](ids[:, :-1]), state)
    state = tuple(s.detach() for s in state)
    loss = F.cross_entropy(model["head"](out).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    losses.append(loss.item())
tell(model, losses)
