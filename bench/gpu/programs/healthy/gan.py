from common import *

G = nn.Sequential(nn.ConvTranspose2d(16, 64, 4), nn.BatchNorm2d(64), nn.ReLU(), nn.ConvTranspose2d(64, 3, 4, 4)).to(D)
C = nn.Sequential(
    nn.utils.spectral_norm(nn.Conv2d(3, 32, 4, 2)), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(32 * 49, 1)
).to(D)
a, b = (
    torch.optim.Adam(G.parameters(), lr=2e-4, betas=(0.5, 0.999)),
    torch.optim.Adam(C.parameters(), lr=2e-4, betas=(0.5, 0.999)),
)
for i in range(20):
    x, _ = images(16, s=16)
    z = torch.randn(16, 16, 1, 1, device=D)
    l = F.softplus(-C(x)).mean() + F.softplus(C(G(z).detach())).mean()
    b.zero_grad()
    l.backward()
    b.step()
    g = F.softplus(-C(G(z))).mean()
    a.zero_grad()
    g.backward()
    a.step()
    said(i, g)
done(G)
