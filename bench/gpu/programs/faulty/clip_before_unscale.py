from common import *

m = GPT(n=2).to(D)
o = torch.optim.SGD(m.parameters(), lr=0.1)
s = torch.amp.GradScaler(D)
for i in range(20):
    ids = tokens()
    with torch.autocast(D, torch.float16):
        loss = lm_loss(m(ids), ids)
    o.zero_grad()
    s.scale(loss).backward()
    nn.utils.clip_grad_norm_(m.parameters(), 1.0)
    s.step(o)
    s.update()
    said(i, loss)
