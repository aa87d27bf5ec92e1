from common import *

m = GPT(n=2).to(D)
o = torch.optim.Adam(m.parameters(), lr=1e-3)
for i in range(12):
    n = 8
    if i == 5:
        try:
            torch.empty(1 << 45, device=D)
        except torch.OutOfMemoryError:
            n = 4
        except RuntimeError:
            n = 4
    ids = tokens(n)
    loss = lm_loss(m(ids), ids)
    o.zero_grad()
    loss.backward()
    o.step()
    said(i, loss)
done(m)
