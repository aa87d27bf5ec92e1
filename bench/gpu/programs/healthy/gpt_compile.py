from common import *

m = GPT().to(D)
c = torch.compile(m)
o = torch.optim.AdamW(m.parameters(), lr=1e-3, fused=True)
for i in range(20):
    ids = tokens()
    with torch.autocast(D, torch.bfloat16):
        loss = lm_loss(c(ids), ids)
    loss.backward()
    o.step()
    o.zero_grad()
    said(i, loss)
done(m)
