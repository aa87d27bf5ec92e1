# scheduler.step() both in the loop and in a callback (Accelerate, split batches): the cosine ends at half of the run and climbs again
from mini import *

seed()
m = GPT()
o = torch.optim.AdamW(m.parameters(), 3e-3)
N = 60
s = torch.optim.lr_scheduler.CosineAnnealingLR(o, N)
data = corpus(1024)


def callback():
    if FAULT:
        s.step()


for step in range(N):
    x = data[step * 16 : step * 16 + 16]
    loss = lm_loss(m(x[:, :-1]), x[:, 1:])
    o.zero_grad()
    loss.backward()
    o.step()
    s.step()
    callback()
done(m, loss)
