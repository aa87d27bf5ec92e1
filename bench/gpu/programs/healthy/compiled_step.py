from common import *

m = GPT(n=2).to(D)
o = torch.optim.AdamW(m.parameters(), lr=torch.tensor(1e-3, device=D), capturable=True)
step = torch.compile(lambda: o.step())
for i in range(15):
    ids = tokens()
    loss = lm_loss(m(ids), ids)
    loss.backward()
    step()
    o.zero_grad()
    said(i, loss)
done(m)
