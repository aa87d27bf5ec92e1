# zero_grad at the top of every micro-batch: only the last one of each window counts
from mini import *

seed()
m = GPT()
o = torch.optim.SGD(m.parameters(), 0.5)
data = corpus(2048)
ACC = 4
for i in range(160):
    if FAULT or i % ACC == 0:
        o.zero_grad()
    x = data[i * 8 : i * 8 + 8]
    loss = lm_loss(m(x[:, :-1]), x[:, 1:])
    (loss / ACC).backward()
    if (i + 1) % ACC == 0:
        o.step()
done(m, loss)
