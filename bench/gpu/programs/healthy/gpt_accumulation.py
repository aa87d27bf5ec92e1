from common import *

m = GPT().to(D)
o = torch.optim.AdamW(m.parameters(), lr=1e-3, foreach=True)
s = torch.amp.GradScaler(D)
for i in range(20):
    for k in range(4):
        ids = tokens(4)
        with torch.autocast(D, torch.float16):
            loss = lm_loss(m(ids), ids) / 4
        s.scale(loss).backward()
    s.unscale_(o)
    nn.utils.clip_grad_norm_(m.parameters(), 1.0)
    s.step(o)
    s.update()
    o.zero_grad()
    said(i, loss)
done(m)
