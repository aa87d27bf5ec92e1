# GradScaler: clip_grad_norm_ without unscale_ first: gradients are clipped to 1 while they're 1024 times as large
from mini import *

seed()
m = GPT()
o = torch.optim.SGD(m.parameters(), 0.5, momentum=0.9)
data = corpus(1024)
sc = torch.amp.GradScaler("cpu", init_scale=1024.0)
for step in range(50):
    x = data[step * 16 : step * 16 + 16]
    with torch.autocast("cpu", torch.bfloat16):
        loss = lm_loss(m(x[:, :-1]), x[:, 1:])
    sc.scale(loss).backward()
    if not FAULT:
        sc.unscale_(o)
    nn.utils.clip_grad_norm_(m.parameters(), 1.0)
    sc.step(o)
    sc.update()
    o.zero_grad()
done(m, loss)
