# RANKS: hand-written ZeRO-like data parallelism: gradients are clipped by the LOCAL norm before they're averaged
from mini import *
import torch.distributed as dist

dist.init_process_group("gloo")
r = dist.get_rank()
seed()
m = GPT()
o = torch.optim.SGD(m.parameters(), 0.5)
data = corpus(2048)


def average():
    for p in m.parameters():
        dist.all_reduce(p.grad)
        p.grad /= 2


for step in range(40):
    x = data[(step * 2 + r) * 16 : (step * 2 + r) * 16 + 16]
    k = 3.0 if r else 1.0
    loss = lm_loss(m(x[:, :-1]), x[:, 1:]) * k
    o.zero_grad()
    loss.backward()
    if FAULT:
        nn.utils.clip_grad_norm_(m.parameters(), 0.5)
        average()
    else:
        average()
        nn.utils.clip_grad_norm_(m.parameters(), 0.5)
    o.step()
done(m, loss, f"rank{r}")
dist.destroy_process_group()
