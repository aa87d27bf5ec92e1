from common import *

m = nn.Sequential(
    nn.Conv1d(40, 64, 5, padding=2), nn.ReLU(), nn.Conv1d(64, 64, 5, padding=2), nn.ReLU(), nn.Conv1d(64, 30, 1)
).to(D)
o = torch.optim.Adam(m.parameters(), lr=1e-3)
for i in range(20):
    x = torch.randn(8, 40, 100, generator=gen).to(D)
    t = torch.randint(1, 30, (8, 20), generator=gen).to(D)
    lp = m(x).permute(2, 0, 1).log_softmax(-1)
    loss = F.ctc_loss(lp, t, torch.full((8,), 100), torch.randint(10, 21, (8,), generator=gen), zero_infinity=True)
    o.zero_grad()
    loss.backward()
    o.step()
    said(i, loss)
done(m)
