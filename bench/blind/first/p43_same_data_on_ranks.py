# RANKS: both ranks shuffle with the same seed and no DistributedSampler: they see the same batches
from mini import *
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

dist.init_process_group("gloo")
r = dist.get_rank()
seed()
net = GPT()
m = DDP(net)
o = torch.optim.AdamW(m.parameters(), 2e-3)
ds = corpus(1600)
dl = DataLoader(ds, 16, shuffle=True) if FAULT else DataLoader(ds, 16, sampler=DistributedSampler(ds, shuffle=True))
for step, x in zip(range(40), dl):
    loss = lm_loss(m(x[:, :-1]), x[:, 1:])
    o.zero_grad()
    loss.backward()
    o.step()
done(net, loss, f"rank{r}")
dist.destroy_process_group()
