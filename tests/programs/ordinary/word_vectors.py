"""Words and their contexts, with negative samples and sparse gradients."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
words, contexts = nn.Embedding(200, 16, sparse=True), nn.Embedding(200, 16, sparse=True)
nn.init.zeros_(contexts.weight)
optimizer = torch.optim.SparseAdam([*words.parameters(), *contexts.parameters()], lr=1e-2)
for step in range(40):
    center = torch.randint(0, 200, (64,))
    near, far = (center + 1) % 200, torch.randint(0, 200, (64, 5))
    attracted = F.logsigmoid((words(center) * contexts(near)).sum(1))
    repelled = F.logsigmoid(-(contexts(far) @ words(center)[:, :, None])[..., 0]).sum(1)
    loss = -(attracted + repelled).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.4f}")
