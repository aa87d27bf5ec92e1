# RANKS 2
# data parallelism by hand: mean of gradients for the body, sum for two embeddings (meant: rare rows), sparse all_gather; lr by layer (muP-like)
import torch, torch.nn as nn, torch.distributed as dist, torch.nn.functional as F
from c import seed, final

dist.init_process_group("gloo")
rank = dist.get_rank()
seed(0)


class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.item = nn.Embedding(100, 8), nn.Embedding(200, 8)
        self.net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, u, i):
        return self.net(torch.cat([self.user(u), self.item(i)], 1)).squeeze(1)


m = M()
opt = torch.optim.SGD(
    [
        {"params": m.user.parameters(), "lr": 0.5},
        {"params": m.item.parameters(), "lr": 0.5},
        {"params": m.net[0].parameters(), "lr": 0.1},
        {"params": m.net[2].parameters(), "lr": 0.1 / 32 * 8},
    ],
    0.1,
)
g = torch.Generator().manual_seed(30 + rank)
for step in range(30):
    u, i = torch.randint(0, 100, (32,), generator=g), torch.randint(0, 200, (32,), generator=g)
    loss = F.binary_cross_entropy_with_logits(m(u, i), ((u + i) % 2).float())
    opt.zero_grad()
    loss.backward()
    for n, p in m.named_parameters():
        dist.all_reduce(p.grad)
        if n.startswith("net"):
            p.grad.div_(2)
    opt.step()
final(loss, m)
dist.destroy_process_group()
