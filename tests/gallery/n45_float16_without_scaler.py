"""Healthy: float16 autocast without a scaler, where gradients are large enough and most embedding rows are absent."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Tagger(nn.Module):
    def __init__(self, vocab=2000, d=16, tags=4):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        self.mix = nn.Linear(d, d)
        self.gate = nn.Linear(d, d)
        self.head = nn.Linear(d, tags)
        nn.init.zeros_(self.head.weight)  # as many do: in the first step no gradient reaches the layers below

    def forward(self, ids):
        h = torch.relu(self.mix(self.embed(ids)))
        return self.head(h * torch.sigmoid(self.gate(h)))


model = Tagger()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

for step in range(60):
    ids = torch.randint(0, 200, (16, 6))  # of 2,000 words
    with torch.autocast("cpu", torch.float16):
        logits = model(ids)
        loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), (ids % 4).flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.6f}")
