# unfreezing rebuilds the optimizer at step 10; the scheduler keeps the old one
import torch, torch.nn as nn
from c import FAULT, seed, final

seed()
body = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
head = nn.Linear(64, 3)
model = nn.Sequential(body, head)
body.requires_grad_(False)
opt = torch.optim.AdamW(head.parameters(), 3e-3)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 40)
g = torch.Generator().manual_seed(1)
for step in range(40):
    if step == 10:
        body.requires_grad_(True)
        opt = torch.optim.AdamW(model.parameters(), 3e-3)
        if not FAULT:
            sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 30)
    x = torch.randn(32, 20, generator=g)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    loss = nn.functional.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    print(step, loss.item(), opt.param_groups[0]["lr"])
final(loss, model)
