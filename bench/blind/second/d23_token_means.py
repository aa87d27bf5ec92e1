# RANKS 2
# DDP over ranks with unequal numbers of target tokens: average of means
import torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from c import FAULT, seed, final

dist.init_process_group("gloo")
rank = dist.get_rank()
seed()


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(40, 32)
        self.rnn = nn.GRU(32, 32, batch_first=True)
        self.out = nn.Linear(32, 40)

    def forward(self, x):
        return self.out(self.rnn(self.emb(x))[0])


model = DDP(LM())
opt = torch.optim.Adam(model.parameters(), 2e-3)
g = torch.Generator().manual_seed(10 + rank)
for step in range(20):
    n = torch.randint(2, 20, (8,), generator=g)
    x = (torch.randint(0, 40, (8, 1), generator=g) + torch.arange(21) * 3) % 40
    y = x[:, 1:].clone()
    y[torch.arange(20)[None] >= n[:, None]] = -100
    if FAULT:
        loss = F.cross_entropy(model(x[:, :-1]).reshape(-1, 40), y.reshape(-1))
    else:
        total = (y != -100).sum()
        dist.all_reduce(total)
        loss = F.cross_entropy(model(x[:, :-1]).reshape(-1, 40), y.reshape(-1), reduction="sum") * 2 / total
    opt.zero_grad()
    loss.backward()
    opt.step()
    if rank == 0:
        print(step, loss.item())
final(loss, model)
dist.destroy_process_group()
