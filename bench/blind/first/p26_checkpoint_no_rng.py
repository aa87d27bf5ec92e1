# activation checkpointing with preserve_rng_state=False round dropout: backward sees another dropout mask than forward
from mini import *
from torch.utils.checkpoint import checkpoint


class Ck(GPT):
    def forward(s, ids):
        x = s.tok(ids) + s.pos(torch.arange(ids.shape[1]))
        for b in s.blocks:
            x = checkpoint(b, x, use_reentrant=False, preserve_rng_state=not FAULT)
        return s.head(s.ln(x))


seed()
m = Ck(p=0.2)
o = torch.optim.AdamW(m.parameters(), 2e-3)
data = corpus(1024)
for step in range(50):
    x = data[step * 16 : step * 16 + 16]
    loss = lm_loss(m(x[:, :-1]), x[:, 1:])
    o.zero_grad()
    loss.backward()
    o.step()
done(m, loss)
