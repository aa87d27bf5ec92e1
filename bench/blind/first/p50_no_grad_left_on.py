# set_grad_enabled(False) for a "frozen warm start" of the first block is undone one step late... never for the first block (from step 10)
from mini import *


class W(GPT):
    hot = False

    def forward(s, ids):
        x = s.tok(ids) + s.pos(torch.arange(ids.shape[1]))
        with torch.set_grad_enabled(not s.hot):
            h = s.blocks[0](x)
        x = x + h
        return s.head(s.ln(s.blocks[1](x)))


seed()
m = W()
o = torch.optim.AdamW(m.parameters(), 2e-3)
data = corpus(1024)
for step in range(50):
    m.hot = FAULT and step >= 10
    x = data[step * 16 : step * 16 + 16]
    loss = lm_loss(m(x[:, :-1]), x[:, 1:])
    o.zero_grad()
    loss.backward()
    o.step()
done(m, loss)
