# a leftover .detach() between two blocks: embeddings and first block are never trained (they have requires_grad and are in the optimizer)
from mini import *


class Cut(GPT):
    def forward(s, ids):
        x = s.tok(ids) + s.pos(torch.arange(ids.shape[1]))
        x = s.blocks[0](x)
        if FAULT:
            x = x.detach()
        return s.head(s.ln(s.blocks[1](x)))


seed()
m = Cut()
o = torch.optim.AdamW(m.parameters(), 2e-3, weight_decay=0.0)
data = corpus(1024)
for step in range(50):
    x = data[step * 16 : step * 16 + 16]
    loss = lm_loss(m(x[:, :-1]), x[:, 1:])
    o.zero_grad()
    loss.backward()
    o.step()
done(m, loss)
