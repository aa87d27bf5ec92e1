from common import *

m = GPT(n=2).to(D)
o = torch.optim.AdamW(m.parameters(), lr=1e-3, fused=True)
for i in range(20):
    ids = tokens()
    with torch.autocast(D, torch.bfloat16):
        loss = lm_loss(m(ids), ids)
    loss.backward()
    o.step()
    said(i, loss)
