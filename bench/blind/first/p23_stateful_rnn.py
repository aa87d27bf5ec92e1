# the hidden state of the last batch is carried into the next one, though the batches are shuffled, unrelated sequences
from mini import *


class LM(nn.Module):
    def __init__(s):
        super().__init__()
        s.e, s.r, s.o = nn.Embedding(V, 32), nn.GRU(32, 32, batch_first=True), nn.Linear(32, V)
        s.h = None

    def forward(s, x):
        y, h = s.r(s.e(x), s.h if FAULT else None)
        s.h = h.detach()
        return s.o(y)


seed()
m = LM()
o = torch.optim.Adam(m.parameters(), 5e-3)
data = corpus(1024)
for step in range(60):
    x = data[step * 16 : step * 16 + 16]
    loss = lm_loss(m(x[:, :-1]), x[:, 1:])
    o.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(m.parameters(), 1.0)
    o.step()
done(m, loss)
