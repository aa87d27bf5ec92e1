"""Fine-tuning in two stages: all at first, then the head alone."""

import torch
from kit import FAULT, metric, tell, words
from torch import nn

torch.manual_seed(11)
VOCAB, FREEZE_AT, STEPS = 32, 24, 60
data = words(512, 12, VOCAB, seed=11)
label = (data[:, -1] - 4) % 6


class Encoder(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.place = nn.Parameter(0.1 * torch.randn(12, width))
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)

    def forward(self, tokens):
        return self.layers(self.embed(tokens) + self.place)[:, -1]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.head = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 6))

    def forward(self, tokens):
        return self.head(self.encoder(tokens))

    def freeze_encoder(self):
        for p in self.encoder.parameters():
            p.requires_grad_(False)


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1)
losses = []
for step in range(STEPS):
    if step == FREEZE_AT:
        model.freeze_encoder()
    if FAULT:
        optimizer.zero_grad(set_to_none=False)
    else:
        optimizer.zero_grad(set_to_none=True)
    index = torch.randint(448, (32,))
    loss = nn.functional.cross_entropy(model(data[index]), label[index])
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
    if step + 1 == FREEZE_AT:
        kept = {k: v.clone() for k, v in model.encoder.state_dict().items()}
moved = max(float((v - kept[k]).abs().max()) for k, v in model.encoder.state_dict().items())
metric("encoder_moved", moved)
with torch.no_grad():
    metric("loss", nn.functional.cross_entropy(model(data[448:]), label[448:]))
tell(model, losses)
