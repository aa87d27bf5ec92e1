# GAN: D's gradients are cleared after its step only; the generator's backward fills them again before D's next backward
from mini import *

seed()
G = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))
D = nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
og, od = torch.optim.Adam(G.parameters(), 1e-3), torch.optim.Adam(D.parameters(), 1e-3)
X, _ = blobs(4096)
bce = F.binary_cross_entropy_with_logits
for step in range(60):
    real = X[step * 32 : step * 32 + 32]
    fake = G(torch.randn(32, 8))
    if not FAULT:
        od.zero_grad()
    ld = bce(D(real), torch.ones(32, 1)) + bce(D(fake.detach()), torch.zeros(32, 1))
    ld.backward()
    od.step()
    od.zero_grad()
    og.zero_grad()
    lg = bce(D(fake), torch.ones(32, 1))
    lg.backward()
    og.step()
done(D, ld)
