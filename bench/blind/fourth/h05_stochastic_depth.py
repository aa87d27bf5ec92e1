"""Healthy: LayerDrop: whole layers are skipped by chance, so their gradients are None in such a step; AdamW, accumulation of 2."""

import torch
from kit import sentences, tell
from torch import nn

torch.manual_seed(105)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Embedding(64, 32), nn.Embedding(16, 32)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True, dropout=0.1) for _ in range(4)
        )
        self.head = nn.Linear(32, 64, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        t = ids.shape[1]
        x = self.embed(ids) + self.place(torch.arange(t))
        mask = nn.Transformer.generate_square_subsequent_mask(t)
        for layer in self.layers:
            if self.training and torch.rand(()) < 0.3:
                continue
            x = layer(x, src_mask=mask, is_causal=True)
        return self.head(x) / 32**0.5


model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
data = torch.tensor([s[:13] for s in sentences(400, 13, 15, 64)])
losses = []
for _ in range(40):
    optimizer.zero_grad(set_to_none=True)
    for _ in range(2):
        batch = data[torch.randint(0, 400, (8,))]
        loss = nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        (loss / 2).backward()
        losses.append(loss.detach())
    optimizer.step()
tell(model, losses)
