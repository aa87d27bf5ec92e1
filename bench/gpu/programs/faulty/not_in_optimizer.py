from common import *

m = GPT(n=3).to(D)
o = torch.optim.AdamW([p for n, p in m.named_parameters() if "blocks.1.up" not in n], lr=1e-3, fused=True)
for i in range(20):
    ids = tokens()
    loss = lm_loss(m(ids), ids)
    o.zero_grad()
    loss.backward()
    o.step()
    said(i, loss)
