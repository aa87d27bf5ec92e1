"""A small transformer whose parameters are split into those with weight decay and those without."""

import torch
import torch.nn.functional as F
from kit import FAULT, tell, words
from torch import nn

V, D, T = 36, 32, 12


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, D), nn.Embedding(T, D)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(D, 4, 64, dropout=0.0, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.norm = nn.LayerNorm(D)
        self.head = nn.Linear(D, V, bias=False)

    def forward(self, ids):
        t = ids.shape[1]
        x = self.tok(ids) + self.pos(torch.arange(t))
        mask = nn.Transformer.generate_square_subsequent_mask(t)
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return self.head(self.norm(x))


torch.manual_seed(0)
data = words(256, T + 1, V)
model = LM()
decay, no_decay = [], []
for name, p in model.named_parameters():
    if name.endswith("bias"):
        no_decay.append(p)
    elif p.ndim >= 2:
        decay.append(p)
    elif not FAULT:
        no_decay.append(p)
groups = [{"params": decay, "weight_decay": 0.1}, {"params": no_decay, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=3e-3)
losses = []
for step in range(30):
    batch = data[torch.randint(0, len(data), (16,))]
    loss = F.cross_entropy(model(batch[:, :-1]).reshape(-1, V), batch[:, 1:].reshape(-1))
    model.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
tell(model, losses)
