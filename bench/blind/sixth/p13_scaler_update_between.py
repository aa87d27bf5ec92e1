"""Mixed precision with one scaler and two optimizers, one for the embedding and one for the rest."""

import torch
import torch.nn.functional as F
from kit import FAULT, metric, tell
from torch import nn

torch.manual_seed(0)
ids = torch.randint(0, 50, (1024, 6))
y = (torch.randn(50, 4)[ids].sum(dim=1)).argmax(dim=1)
embedding = nn.EmbeddingBag(50, 16, mode="sum")
body = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 4))
model = nn.ModuleDict({"embedding": embedding, "body": body})
fast = torch.optim.SGD(embedding.parameters(), lr=0.3)
slow = torch.optim.SGD(body.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3)
losses = []
for step in range(80):
    at = torch.randint(0, 896, (64,))
    hidden = embedding(ids[at])
    with torch.autocast("cpu", dtype=torch.float16):
        logits = body(hidden)
    loss = F.cross_entropy(logits.float(), y[at])
    fast.zero_grad()
    slow.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(slow)
    if FAULT:
        scaler.update()
    scaler.step(fast)
    scaler.update()
    losses.append(loss.item())
with torch.no_grad():
    metric("loss", F.cross_entropy(body(embedding(ids[896:])), y[896:]))
tell(model, losses)
