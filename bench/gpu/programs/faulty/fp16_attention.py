from common import *


class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.e, self.q, self.k, self.h = nn.Embedding(512, 64), nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 512)

    def forward(self, ids, gain=1.0):
        x = self.e(ids)
        a = (self.q(x) * gain) @ (self.k(x) * gain).transpose(1, 2)
        return self.h(x + a.softmax(-1) @ x)


m = M().to(D)
o = torch.optim.SGD(m.parameters(), lr=0.1)
for i in range(8):
    ids = tokens()
    with torch.autocast(D, torch.float16):
        loss = lm_loss(m(ids, 400.0 if i == 5 else 1.0), ids)
    o.zero_grad()
    loss.backward()
    o.step()
    said(i, loss)
