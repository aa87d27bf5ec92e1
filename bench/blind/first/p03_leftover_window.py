# 13 micro-batches an epoch, windows of 4: the last one of an epoch is neither stepped nor cleared; it leaks into the next epoch
from mini import *

seed()
m = GPT()
o = torch.optim.SGD(m.parameters(), 0.5)
data = corpus(13 * 8)
ACC = 4
n = 0
for epoch in range(12):
    perm = torch.randperm(len(data))
    if not FAULT:
        o.zero_grad()
    for i in range(13):
        x = data[perm[i * 8 : i * 8 + 8]]
        loss = lm_loss(m(x[:, :-1]), x[:, 1:])
        (loss / ACC).backward()
        if (i + 1) % ACC == 0:
            o.step()
            o.zero_grad()
            n += 1
done(m, loss)
