# RANKS: from step 12 the loop calls m.module(...) ("to save the wrapper's overhead"): gradients aren't averaged any more
from mini import *
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
r = dist.get_rank()
seed()
net = GPT()
m = DDP(net)
o = torch.optim.AdamW(m.parameters(), 2e-3)
data = corpus(2048)
for step in range(40):
    x = data[(step * 2 + r) * 16 : (step * 2 + r) * 16 + 16]
    f = m.module if FAULT and step >= 12 else m
    loss = lm_loss(f(x[:, :-1]), x[:, 1:])
    o.zero_grad()
    loss.backward()
    o.step()
done(net, loss, f"rank{r}")
dist.destroy_process_group()
