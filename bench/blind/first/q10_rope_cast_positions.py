# rotary angles are computed in bfloat16 under autocast (model.to(bf16) cast inv_freq): far positions share an angle
from mini import *


class Rope(Block):
    def __init__(s, d, h, p=0.0):
        super().__init__(d, h, p)
        s.register_buffer("inv", 1.0 / 10000 ** (torch.arange(0, d // h, 2) / (d // h)))

    def rot(s, x):
        dt = torch.bfloat16 if FAULT else torch.float32
        a = torch.arange(1000, 1000 + x.shape[-2]).to(dt)[:, None] * s.inv.to(dt)
        c, n = a.cos().float(), a.sin().float()
        x1, x2 = x.chunk(2, -1)
        return torch.cat([x1 * c - x2 * n, x2 * c + x1 * n], -1)

    def attend(s, q, k, v, mask):
        return super().attend(s.rot(q), s.rot(k), v, mask)


seed()
m = GPT(block=Rope)
o = torch.optim.AdamW(m.parameters(), 3e-3)
data = corpus(1024)
for step in range(12):
    x = data[step * 16 : step * 16 + 16]
    loss = lm_loss(m(x[:, :-1]), x[:, 1:])
    o.zero_grad()
    loss.backward()
    o.step()
done(m, loss)
