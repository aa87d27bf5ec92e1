# DQN-like regression whose last layer is made anew every 40 updates, and a codebook whose dead codes are set to inputs
import torch, torch.nn as nn, torch.nn.functional as F
from c import seed, final

seed()
body, head = nn.Sequential(nn.Linear(16, 32), nn.ReLU()), nn.Linear(32, 4)
book = nn.Parameter(torch.randn(24, 8))
enc, dec = nn.Linear(16, 8), nn.Linear(8, 16)
P = [*body.parameters(), *head.parameters(), *enc.parameters(), *dec.parameters(), book]
o = torch.optim.Adam(P, 1e-3)
W = torch.randn(16, 4)
used = torch.zeros(24)
for step in range(160):
    x = torch.randn(64, 16)
    z = enc(x)
    i = torch.cdist(z, book).argmin(1)
    used += torch.bincount(i, minlength=24)
    q = book[i]
    loss = (
        F.mse_loss(head(body(x)), x @ W)
        + F.mse_loss(dec(z + (q - z).detach()), x)
        + F.mse_loss(q, z.detach())
        + 0.25 * F.mse_loss(z, q.detach())
    )
    o.zero_grad()
    loss.backward()
    o.step()
    if step % 25 == 24:
        with torch.no_grad():
            dead = (used == 0).nonzero().flatten()
            book[dead] = z[torch.randint(64, (len(dead),))]
        used.zero_()
    if step % 40 == 39:
        head.reset_parameters()
final(loss, body, head, enc, dec)
