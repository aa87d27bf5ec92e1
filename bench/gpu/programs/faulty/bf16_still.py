from common import *

m = GPT(n=2).to(D, torch.bfloat16)
o = torch.optim.SGD(m.parameters(), lr=1e-6)
for i in range(30):
    ids = tokens()
    loss = lm_loss(m(ids), ids)
    o.zero_grad()
    loss.backward()
    o.step()
    said(i, loss)
