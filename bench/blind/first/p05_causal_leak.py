# mask with diagonal=1 too many: every token sees the next one, that it has to predict
from mini import *


class Leaky(Block):
    def attend(s, q, k, v, mask):
        T = q.shape[-2]
        a = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        causal = torch.tril(torch.ones(T, T), diagonal=1 if FAULT else 0)
        return a.masked_fill(causal == 0, float("-inf")).softmax(-1) @ v


seed()
m = GPT(block=Leaky)
o = torch.optim.AdamW(m.parameters(), 3e-3)
data = corpus(1024)
for step in range(60):
    x = data[step * 16 : step * 16 + 16]
    loss = lm_loss(m(x[:, :-1]), x[:, 1:])
    loss.backward()
    o.step()
    o.zero_grad()
done(m, loss)
