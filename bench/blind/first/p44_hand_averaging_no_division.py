# RANKS: hand-written data parallelism: all_reduce(SUM) without the division for parameters with fewer than two dimensions
from mini import *
import torch.distributed as dist

dist.init_process_group("gloo")
r = dist.get_rank()
seed()
m = GPT()
o = torch.optim.SGD(m.parameters(), 0.3)
data = corpus(2048)
for step in range(40):
    x = data[(step * 2 + r) * 16 : (step * 2 + r) * 16 + 16]
    loss = lm_loss(m(x[:, :-1]), x[:, 1:])
    o.zero_grad()
    loss.backward()
    for p in m.parameters():
        dist.all_reduce(p.grad)
        if p.dim() >= 2 or not FAULT:
            p.grad /= 2
    o.step()
done(m, loss, f"rank{r}")
dist.destroy_process_group()
