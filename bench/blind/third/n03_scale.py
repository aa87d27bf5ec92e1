"""fp16 with a GradScaler: one loss term overflows fp16 at any scale, all steps are skipped and the scale falls to 0."""

import torch
import torch.nn.functional as F
from torch import nn
from c import FAULT, finish

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
opt = torch.optim.SGD(net.parameters(), 0.05)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=20)
W = torch.randn(16, 4)
losses = []
for step in range(40):
    x = torch.randn(32, 16)
    with torch.autocast("cpu", torch.float16):
        logits = net(x)
        ce = F.cross_entropy(logits.float(), (x @ W).argmax(1))
        reg = logits if FAULT else logits.float()
        if step >= 6:
            z = (reg * 200).pow(2).mean() * 1e-5  # FAULT: fp16 square above 65504
        else:
            z = 0.0
        loss = ce + z
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    losses.append(loss.item())
print("scale", scaler.get_scale())
finish(losses, net)
