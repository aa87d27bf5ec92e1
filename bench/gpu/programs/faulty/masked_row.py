from common import *


class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.e, self.q, self.h = nn.Embedding(512, 64), nn.Linear(64, 192), nn.Linear(64, 512)

    def forward(self, ids, mask):
        q, k, v = self.q(self.e(ids)).chunk(3, -1)
        a = (q @ k.transpose(1, 2)).masked_fill(~mask[:, None], float("-inf"))
        return self.h(a.softmax(-1) @ v)


m = M().to(D)
o = torch.optim.AdamW(m.parameters(), lr=1e-3, fused=True)
for i in range(8):
    ids = tokens()
    mask = torch.ones_like(ids, dtype=torch.bool)
    if i == 4:
        mask[2] = False
    with torch.autocast(D, torch.bfloat16):
        loss = lm_loss(m(ids, mask), ids)
    o.zero_grad()
    loss.backward()
    o.step()
    said(i, loss)
