from common import *

m = GPT(n=2).to(D)
o = torch.optim.Adam(m.parameters(), lr=1e-3, foreach=True)
for i in range(20):
    ids = tokens()
    loss = lm_loss(m(ids), ids)
    o.zero_grad()
    loss.backward()
    o.step()
    said(i, loss)
    with torch.no_grad():
        if i == 9:
            m.blocks[1].up.weight.view(torch.int32)[5, 7] ^= 1 << 29
