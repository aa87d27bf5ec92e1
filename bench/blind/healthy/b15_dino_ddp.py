# RANKS 2
# DINO: teacher EMA with centre all-reduced, last layer frozen in the first epoch (gradients set to None), weight norm, cosine schedules by hand
import copy, math, torch, torch.nn as nn, torch.distributed as dist, torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from c import seed, final

dist.init_process_group("gloo")
rank = dist.get_rank()
seed(0)


class S(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.last = nn.utils.parametrizations.weight_norm(nn.Linear(16, 24, bias=False))
        self.last.parametrizations.weight.original0.data.fill_(1)
        self.last.parametrizations.weight.original0.requires_grad = False

    def forward(self, x):
        return self.last(F.normalize(self.body(x), dim=-1))


s = S()
t = S()
t.load_state_dict(s.state_dict())
t.requires_grad_(False)
ddp = DDP(s)
opt = torch.optim.AdamW(s.parameters(), 1e-3)
center = torch.zeros(1, 24)
g = torch.Generator().manual_seed(70 + rank)
for step in range(40):
    opt.param_groups[0]["lr"] = 1e-3 * 0.5 * (1 + math.cos(math.pi * step / 40))
    opt.param_groups[0]["weight_decay"] = 0.04 + 0.01 * step
    x = torch.randn(16, 16, generator=g)
    v1, v2 = x + 0.1 * torch.randn(16, 16, generator=g), x + 0.1 * torch.randn(16, 16, generator=g)
    with torch.no_grad():
        tv = t(v1)
    loss = -(((tv - center) / 0.04).softmax(-1) * (ddp(v2) / 0.1).log_softmax(-1)).sum(-1).mean()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(s.parameters(), 3.0)
    if step < 10:
        for n, p in s.named_parameters():
            if "last" in n:
                p.grad = None
    opt.step()
    with torch.no_grad():
        mom = 1 - (1 - 0.99) * (math.cos(math.pi * step / 40) + 1) / 2
        for a, b in zip(s.parameters(), t.parameters()):
            b.mul_(mom).add_((1 - mom) * a)
        c = tv.sum(0, keepdim=True)
        dist.all_reduce(c)
        center = center * 0.9 + c / 32 * 0.1
final(loss, s, t)
dist.destroy_process_group()
