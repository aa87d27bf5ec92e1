# A stateful LSTM by truncated backpropagation, gradients of the recurrent part alone are clipped
import torch, torch.nn as nn, torch.nn.functional as F
from c import seed, final

seed()
e, l, h = nn.Embedding(20, 16), nn.LSTM(16, 32, batch_first=True), nn.Linear(32, 20)
m = nn.ModuleDict({"e": e, "l": l, "h": h})
o = torch.optim.SGD(m.parameters(), 1.0)
text = torch.randint(0, 20, (8, 2000))
text[:, 1::2] = (text[:, ::2] * 3 + 1) % 20
for epoch in range(2):
    s = None
    for t in range(0, 1980, 33):
        x, y = text[:, t : t + 33], text[:, t + 1 : t + 34]
        out, s = l(e(x), s)
        s = tuple(v.detach() for v in s)
        loss = F.cross_entropy(h(out).flatten(0, 1), y.flatten())
        o.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(l.parameters(), 0.1)
        o.step()
final(loss, m)
