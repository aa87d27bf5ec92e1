from common import *

m = GPT(n=2).to(D)
o = torch.optim.AdamW(m.parameters(), lr=1e-3, fused=True)


class Dist(nn.Module):
    def forward(self, a, b):
        return (a - b).pow(2).sum(-1).sqrt().mean()


dist = Dist()
for i in range(8):
    ids = tokens()
    x = m.emb(ids)
    z = m.emb(ids.flip(1)) if i != 5 else x
    loss = lm_loss(m(ids), ids) + 0.01 * dist(x, z)
    o.zero_grad()
    loss.backward()
    o.step()
    said(i, loss)
