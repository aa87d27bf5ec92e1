# right: rows of the embedding are projected to unit norm after every step; gradient noise; value clipping
import torch, torch.nn as nn, torch.nn.functional as F
from c import seed, final

seed()
emb = nn.Embedding(100, 16)
emb.weight.data = F.normalize(emb.weight.data)
opt = torch.optim.SGD(emb.parameters(), 0.5)
g = torch.Generator().manual_seed(1)
for step in range(30):
    a = torch.randint(0, 100, (64,), generator=g)
    p = (a + 10) % 100
    n = torch.randint(0, 100, (64,), generator=g)
    loss = F.triplet_margin_loss(emb(a), emb(p), emb(n), margin=0.5)
    opt.zero_grad()
    loss.backward()
    emb.weight.grad.add_(torch.randn(100, 16, generator=g) * 1e-4)
    nn.utils.clip_grad_value_(emb.parameters(), 0.05)
    opt.step()
    with torch.no_grad():
        emb.weight.div_(emb.weight.norm(dim=1, keepdim=True))
    print(step, loss.item())
final(loss, emb)
