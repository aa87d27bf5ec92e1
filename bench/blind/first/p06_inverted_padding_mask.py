# key_padding_mask convention (True = padding) handed to SDPA (True = takes part), encoder classifier
from mini import *


class Enc(nn.Module):
    def __init__(s):
        super().__init__()
        s.g = GPT()
        s.cls = nn.Linear(V, 5)

    def forward(s, ids, pad):
        mask = (pad if FAULT else ~pad)[:, None, None, :].clone()
        mask[..., 0] = True
        h = s.g(ids, mask)
        keep = (~pad).float()[..., None]
        return s.cls((h * keep).sum(1) / keep.sum(1))


seed()
m = Enc()
o = torch.optim.AdamW(m.parameters(), 2e-3)
data = corpus(1024)[:, :24]
lens = torch.randint(6, 20, (1024,))
pad = torch.arange(24)[None] >= lens[:, None]
ids = data.masked_fill(pad, 0)
y = data[:, 5] % 5
for step in range(60):
    s = slice(step * 16, step * 16 + 16)
    loss = F.cross_entropy(m(ids[s], pad[s]), y[s])
    loss.backward()
    o.step()
    o.zero_grad()
done(m, loss)
