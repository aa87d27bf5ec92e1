# diffusion-like denoiser with an EMA copy for sampling
import copy, torch, torch.nn as nn
from c import FAULT, seed, final

seed()
model = nn.Sequential(nn.Linear(9, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 8))


class EMA:
    def __init__(self, model, decay=0.99):
        self.decay = decay
        if FAULT:
            self.shadow = {n: p.data for n, p in model.named_parameters()}
        else:
            self.shadow = {n: p.data.clone() for n, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model):
        for n, p in model.named_parameters():
            self.shadow[n].mul_(self.decay).add_(p.data, alpha=1 - self.decay)


ema = EMA(model)
opt = torch.optim.AdamW(model.parameters(), 1e-3)
g = torch.Generator().manual_seed(1)
for step in range(40):
    x = torch.randn(32, 8, generator=g) * 0.3 + 1
    t = torch.rand(32, 1, generator=g)
    e = torch.randn(32, 8, generator=g)
    loss = ((model(torch.cat([x * (1 - t) + e * t, t], 1)) - (e - x)) ** 2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    ema.update(model)
    print(step, loss.item())
print("distance", sum(float((ema.shadow[n] - p.detach()).abs().sum()) for n, p in model.named_parameters()))
sampler = copy.deepcopy(model)
sampler.load_state_dict(ema.shadow)
final(loss, sampler)
