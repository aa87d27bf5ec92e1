from common import *
from torch.utils.checkpoint import checkpoint

m = GPT(n=3).to(D)
o = torch.optim.AdamW(m.parameters(), lr=1e-3, capturable=D == "cuda")
for i in range(15):
    ids = tokens()
    with torch.autocast(D, torch.bfloat16):
        x = m.emb(ids) + m.pos
        for b in m.blocks:
            x = checkpoint(b, x, use_reentrant=False)
        loss = lm_loss(m.head(m.norm(x)), ids)
    o.zero_grad()
    loss.backward()
    o.step()
    said(i, loss)
done(m)
