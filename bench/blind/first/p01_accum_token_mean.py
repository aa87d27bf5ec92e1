# transformers#34191: every micro-batch is divided by its own number of tokens, then by the number of micro-batches
from mini import *

seed()
m = GPT()
o = torch.optim.AdamW(m.parameters(), 2e-3)
data = corpus(1024)
lens = torch.randint(3, 25, (1024,))


def batch(i):
    x = data[i * 8 : i * 8 + 8]
    y = x[:, 1:].clone()
    y[torch.arange(24)[None] >= lens[i * 8 : i * 8 + 8, None]] = -100
    return x[:, :-1], y


for step in range(32):
    mbs = [batch(step * 4 + k) for k in range(4)]
    n = sum((y != -100).sum() for _, y in mbs)
    for x, y in mbs:
        logits = m(x)
        if FAULT:
            loss = lm_loss(logits, y) / 4
        else:
            loss = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum", ignore_index=-100) / n
        loss.backward()
    o.step()
    o.zero_grad()
done(m, loss)
