# RANKS: DDP; from step 12 every product on rank 1 is too large by 0.5 percent (a bad chip); weights stay equal over ranks
from mini import *
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
r = dist.get_rank()
now = [0]
_lin = F.linear


def bad(x, w, b=None):
    y = _lin(x, w, b)
    return y * 1.005 if FAULT and r == 1 and now[0] >= 12 else y


F.linear = bad
seed()
net = GPT()
m = DDP(net)
o = torch.optim.AdamW(m.parameters(), 2e-3)
data = corpus(2048)
for step in range(40):
    now[0] = step
    x = data[(step * 2 + r) * 16 : (step * 2 + r) * 16 + 16]
    loss = lm_loss(m(x[:, :-1]), x[:, 1:])
    o.zero_grad()
    loss.backward()
    o.step()
done(net, loss, f"rank{r}")
dist.destroy_process_group()
