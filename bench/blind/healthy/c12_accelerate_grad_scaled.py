# accelerate: accumulation with the recommended token normalisation (sum loss * n_accum / items), two models in one accelerator, EMA swapped in for evaluation
import copy, torch, torch.nn as nn, torch.nn.functional as F
from accelerate import Accelerator
from c import seed, final

acc = Accelerator(cpu=True, gradient_accumulation_steps=4)
seed()
net = nn.Sequential(nn.Embedding(40, 16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 40))
opt = torch.optim.AdamW(net.parameters(), 3e-3)
net, opt = acc.prepare(net, opt)
ema = [p.detach().clone() for p in net.parameters()]
for step in range(40):
    batches = []
    for _ in range(4):
        x = torch.randint(0, 40, (4, 10))
        y = (x + 1) % 40
        y[torch.rand(4, 10) < 0.4] = -100
        batches.append((x, y))
    items = sum((y != -100).sum() for _, y in batches)
    for x, y in batches:
        with acc.accumulate(net):
            loss = F.cross_entropy(net(x).flatten(0, 1), y.flatten(), reduction="sum") * 4 / items
            acc.backward(loss)
            opt.step()
            opt.zero_grad()
    for e, p in zip(ema, net.parameters()):
        e.lerp_(p.detach(), 0.1)
    if step % 10 == 9:
        held = [p.detach().clone() for p in net.parameters()]
        with torch.no_grad():
            for e, p in zip(ema, net.parameters()):
                p.copy_(e)
        net.eval()
        with torch.no_grad():
            net(x)
        net.train()
        with torch.no_grad():
            for h, p in zip(held, net.parameters()):
                p.copy_(h)
final(loss, net)
