# right: VQ with a straight-through estimator, codebook loss, commitment loss and dead codes put anew
import torch, torch.nn as nn, torch.nn.functional as F
from c import seed, final

seed()
enc = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 8))
dec = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 20))
book = nn.Embedding(32, 8)
m = nn.ModuleList([enc, dec, book])
opt = torch.optim.Adam(m.parameters(), 2e-3)
g = torch.Generator().manual_seed(1)
used = torch.zeros(32)
for step in range(30):
    x = torch.randn(64, 3, generator=g) @ torch.linspace(-1, 1, 60).view(3, 20)
    z = enc(x)
    code = torch.cdist(z.detach(), book.weight.detach()).argmin(1)
    q = book(code)
    used += torch.bincount(code, minlength=32)
    y = dec(z + (q - z).detach())
    loss = F.mse_loss(y, x) + F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(z, q.detach())
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item())
    if step % 10 == 9:
        dead = (used == 0).nonzero().squeeze(1)
        if len(dead):
            with torch.no_grad():
                book.weight[dead] = z.detach()[torch.randint(0, 64, (len(dead),), generator=g)]
        used.zero_()
final(loss, m)
