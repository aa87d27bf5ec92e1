# RANKS: DDP with a bf16 compression hook of one's own that sums but doesn't divide, from a "late registration" on the first bucket only
from mini import *
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
r = dist.get_rank()
seed()
net = GPT()
m = DDP(net, bucket_cap_mb=0.02)
data = corpus(2048)


def hook(state, bucket):
    t = bucket.buffer()
    n = 1 if FAULT and bucket.index() == 0 else 2
    c = (t / n).to(torch.bfloat16)
    f = dist.all_reduce(c, async_op=True).get_future()
    return f.then(lambda u: t.copy_(u.value()[0]))


m.register_comm_hook(None, hook)
o = torch.optim.SGD(m.parameters(), 0.3)
for step in range(40):
    x = data[(step * 2 + r) * 16 : (step * 2 + r) * 16 + 16]
    loss = lm_loss(m(x[:, :-1]), x[:, 1:])
    o.zero_grad()
    loss.backward()
    o.step()
done(net, loss, f"rank{r}")
dist.destroy_process_group()
