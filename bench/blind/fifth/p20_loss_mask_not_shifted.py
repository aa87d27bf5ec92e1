"""Fine-tuning on answers only: a mask says which tokens are of the answer."""

import torch
import torch.nn.functional as F
from kit import FAULT, tell, words
from torch import nn

V, D, T = 36, 48, 14


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(V, D)
        self.rnn = nn.GRU(D, D, batch_first=True)
        self.head = nn.Linear(D, V)

    def forward(self, ids):
        out, _ = self.rnn(self.tok(ids))
        return self.head(out)


torch.manual_seed(0)
data = words(256, T, V)
begins = torch.randint(3, 8, (256,))
ends = torch.randint(10, T - 1, (256,))
spots = torch.arange(T)
answer = ((spots >= begins[:, None]) & (spots < ends[:, None])).float()
data = data.masked_fill(spots >= ends[:, None], 0)
model = LM()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
losses = []
for step in range(40):
    at = torch.randint(0, 256, (16,))
    ids, mask = data[at], answer[at]
    logits = model(ids[:, :-1])
    per_token = F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
    mask = mask[:, :-1] if FAULT else mask[:, 1:]
    loss = (per_token * mask).sum() / mask.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
tell(model, losses)
