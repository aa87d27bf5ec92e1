from common import *
from torch.nn.attention.flex_attention import flex_attention, create_block_mask

flex = torch.compile(flex_attention)
bm = create_block_mask(lambda b, h, q, k: q >= k, None, None, 128, 128, device=D)


class A(nn.Module):
    def __init__(self):
        super().__init__()
        self.e, self.q, self.o, self.h = (
            nn.Embedding(512, 128),
            nn.Linear(128, 384),
            nn.Linear(128, 128),
            nn.Linear(128, 512),
        )

    def forward(self, ids):
        x = self.e(ids)
        q, k, v = (z.view(*x.shape[:2], 4, 32).transpose(1, 2) for z in self.q(x).chunk(3, -1))
        return self.h(x + self.o(flex(q, k, v, block_mask=bm).transpose(1, 2).reshape(x.shape)))


m = A().to(D)
o = torch.optim.AdamW(m.parameters(), lr=1e-3)
for i in range(15):
    ids = tokens(4, 128)
    loss = lm_loss(m(ids), ids)
    o.zero_grad()
    loss.backward()
    o.step()
    said(i, loss)
done(m)
