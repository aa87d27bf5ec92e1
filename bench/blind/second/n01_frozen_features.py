# right: frozen backbone in eval mode, features without gradient, warm-up whose first learning rate is 0
import torch, torch.nn as nn
from c import seed, final

seed()
body = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU()).eval().requires_grad_(False)
head = nn.Linear(16, 4)
opt = torch.optim.AdamW(head.parameters(), 1e-2)
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, s / 5))
g = torch.Generator().manual_seed(1)
for step in range(25):
    y = torch.randint(0, 4, (16,), generator=g)
    x = torch.randn(16, 3, 12, 12, generator=g) + y[:, None, None, None]
    with torch.no_grad():
        f = body(x).mean((2, 3))
    loss = nn.functional.cross_entropy(head(f), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    print(step, loss.item())
final(loss, head)
