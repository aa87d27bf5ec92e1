from common import *


class U(nn.Module):
    def __init__(self):
        super().__init__()
        c = lambda a, b, st=1: nn.Sequential(nn.Conv2d(a, b, 3, st, 1), nn.GroupNorm(8, b), nn.SiLU())
        self.a, self.b, self.c, self.d, self.o = c(4, 32), c(32, 64, 2), c(64, 64), c(96, 32), nn.Conv2d(32, 3, 1)

    def forward(self, x, t):
        x = self.a(torch.cat([x, t.view(-1, 1, 1, 1).expand(-1, 1, *x.shape[2:])], 1))
        y = self.c(self.b(x))
        return self.o(self.d(torch.cat([x, F.interpolate(y, scale_factor=2, mode="bilinear")], 1)))


m = U().to(D)
ema = torch.optim.swa_utils.AveragedModel(m, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.99))
o = torch.optim.AdamW(m.parameters(), lr=1e-3, fused=True)
for i in range(25):
    x, _ = images(16)
    t = torch.rand(16, generator=gen).to(D)
    n = torch.randn(x.shape, device=D)
    with torch.autocast(D, torch.bfloat16):
        loss = F.mse_loss(m(x * (1 - t.view(-1, 1, 1, 1)) + n * t.view(-1, 1, 1, 1), t).float(), n)
    o.zero_grad()
    loss.backward()
    o.step()
    ema.update_parameters(m)
    said(i, loss)
done(m)
