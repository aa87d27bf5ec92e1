# RANKS 2
# right: DDP with find_unused_parameters, the ranks take different branches; loss scaled for a sum over all tokens
import torch, torch.nn as nn, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from c import seed, final

dist.init_process_group("gloo")
rank = dist.get_rank()
seed()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(16, 32)
        self.tasks = nn.ModuleList(nn.Linear(32, 4) for _ in range(3))

    def forward(self, x, t):
        return self.tasks[t](torch.relu(self.inp(x)))


m = DDP(Net(), find_unused_parameters=True)
opt = torch.optim.AdamW(m.parameters(), 2e-3)
g = torch.Generator().manual_seed(10 + rank)
for step in range(25):
    n = int(torch.randint(4, 20, (), generator=g))
    x = torch.randn(n, 16, generator=g)
    t = (step + rank) % 3
    total = torch.tensor(n)
    dist.all_reduce(total)
    loss = nn.functional.cross_entropy(m(x, t), (x[:, :4].argmax(1) + t) % 4, reduction="sum") * 2 / total
    opt.zero_grad()
    loss.backward()
    opt.step()
    if rank == 0:
        print(step, loss.item())
final(loss, m)
dist.destroy_process_group()
