# fp16 autocast with GradScaler: clipping without unscale_
import torch, torch.nn as nn
from c import FAULT, seed, final

seed()
model = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 10))
opt = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
g = torch.Generator().manual_seed(1)
for step in range(40):
    y = torch.randint(0, 10, (32,), generator=g)
    x = torch.randn(32, 32, generator=g)
    x[torch.arange(32), y] += 3
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x).float(), y)
    opt.zero_grad()
    scaler.scale(loss).backward()
    if not FAULT:
        scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
    print(step, loss.item())
final(loss, model)
