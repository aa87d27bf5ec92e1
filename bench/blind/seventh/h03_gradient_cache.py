"""Right: a large contrastive batch in small pieces (GradCache): embed, gradient of embeddings, embed again."""

import torch
from kit import metric, tell
from torch import nn

torch.manual_seed(23)
BATCH, PIECE = 64, 16
z = torch.randn(768, 6)
left, right = z @ torch.randn(6, 20) + 0.2 * torch.randn(768, 20), z @ torch.randn(6, 14) + 0.2 * torch.randn(768, 14)


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 16))
        self.passage = nn.Sequential(nn.Linear(14, 48), nn.ReLU(), nn.Linear(48, 16))
        self.log_scale = nn.Parameter(torch.tensor(1.5))


def contrast(q, p, log_scale):
    q, p = nn.functional.normalize(q, dim=1), nn.functional.normalize(p, dim=1)
    logits = q @ p.T * log_scale.exp()
    aim = torch.arange(len(q))
    return (nn.functional.cross_entropy(logits, aim) + nn.functional.cross_entropy(logits.T, aim)) / 2


model = Pair()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
losses = []
for _ in range(40):
    index = torch.randint(704, (BATCH,))
    a, b = left[index], right[index]
    with torch.no_grad():
        q = torch.cat([model.query(piece) for piece in a.split(PIECE)])
        p = torch.cat([model.passage(piece) for piece in b.split(PIECE)])
    q.requires_grad_()
    p.requires_grad_()
    optimizer.zero_grad()
    loss = contrast(q, p, model.log_scale)
    loss.backward()
    for tower, pieces, grads in ((model.query, a, q.grad), (model.passage, b, p.grad)):
        for piece, grad in zip(pieces.split(PIECE), grads.split(PIECE), strict=True):
            (tower(piece) * grad).sum().backward()
    optimizer.step()
    losses.append(loss.detach())
with torch.no_grad():
    metric("loss", contrast(model.query(left[704:]), model.passage(right[704:]), model.log_scale))
tell(model, losses)
