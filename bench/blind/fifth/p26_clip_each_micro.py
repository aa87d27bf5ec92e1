"""Accumulation with clipping."""

import torch
import torch.nn.functional as F
from kit import FAULT, tell, words
from torch import nn

V, D, T, ACCUMULATE = 40, 32, 10, 4


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(V, D)
        self.rnn = nn.LSTM(D, D, batch_first=True)
        self.head = nn.Linear(D, V)

    def forward(self, ids):
        return self.head(self.rnn(self.tok(ids))[0])


torch.manual_seed(0)
data = words(256, T + 1, V)
model = LM()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
losses = []
for step in range(25):
    optimizer.zero_grad()
    total = 0.0
    for micro in range(ACCUMULATE):
        batch = data[torch.randint(0, len(data), (8,))]
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten()) / ACCUMULATE
        loss.backward()
        total += loss.item()
        if FAULT or micro == ACCUMULATE - 1:
            nn.utils.clip_grad_norm_(model.parameters(), 0.15)
    optimizer.step()
    losses.append(total)
tell(model, losses)
