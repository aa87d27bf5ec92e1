from common import *

m = GPT(n=2).to(D)
two = [p for n, p in m.named_parameters() if p.ndim == 2 and "emb" not in n and "pos" not in n]
ids_ = {id(p) for p in two}
rest = [p for p in m.parameters() if id(p) not in ids_]
o, q = torch.optim.Muon(two, lr=0.02), torch.optim.AdamW(rest, lr=1e-3, fused=True)
for i in range(20):
    ids = tokens()
    with torch.autocast(D, torch.bfloat16):
        loss = lm_loss(m(ids), ids)
    loss.backward()
    o.step()
    q.step()
    o.zero_grad()
    q.zero_grad()
    said(i, loss)
done(m)
