"""A text classifier with hand-written attention."""

import torch
import torch.nn.functional as F
from kit import FAULT, tell, words
from torch import nn


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x):
        scores = torch.einsum("bid,bjd->bij", self.q(x), self.k(x)) / x.shape[-1] ** 0.5
        weights = scores.softmax(dim=1 if FAULT else 2)
        return self.out(weights @ self.v(x))


class Classifier(nn.Module):
    def __init__(self, vocabulary=40, width=32, classes=4):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.attention = Attention(width)
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))
        self.head = nn.Linear(width, classes)

    def forward(self, ids):
        x = self.embed(ids)
        x = x + self.attention(self.norm(x))
        x = x + self.mlp(x)
        return self.head(x.mean(dim=1))


torch.manual_seed(0)
ids = words(256, 12, 40)
labels = ids[:, :3].sum(dim=1) % 4
model = Classifier()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
losses = []
for step in range(40):
    at = torch.randint(0, len(ids), (16,))
    loss = F.cross_entropy(model(ids[at]), labels[at])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
tell(model, losses)
