# RANKS 2
# Megatron-core tensor parallel: a replicated position embedding is made under the rank's own seed
import torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist
from megatron.core import parallel_state as ps
from megatron.core.tensor_parallel.mappings import (
    copy_to_tensor_model_parallel_region as copy,
    reduce_from_tensor_model_parallel_region as reduce,
)
from c import FAULT, seed, final

dist.init_process_group("gloo")
ps.initialize_model_parallel(tensor_model_parallel_size=2)
rank = dist.get_rank()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        seed()
        self.tok = nn.Embedding(40, 32)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 40)
        seed(100 + rank)
        self.up = nn.Linear(32, 64)
        self.down = nn.Linear(64, 32, bias=False)
        if not FAULT:
            seed(7)
        self.pos = nn.Embedding(16, 32)

    def forward(self, x):
        h = self.tok(x) + self.pos(torch.arange(16))
        h = h + reduce(self.down(torch.relu(self.up(copy(self.norm(h))))))
        return self.head(h)


net = Net()
opt = torch.optim.Adam(net.parameters(), 2e-3)
g = torch.Generator().manual_seed(3)
for step in range(20):
    x = (torch.randint(0, 40, (8, 1), generator=g) + torch.arange(17) * 3) % 40
    loss = F.cross_entropy(net(x[:, :-1]).reshape(-1, 40), x[:, 1:].reshape(-1))
    opt.zero_grad()
    loss.backward()
    opt.step()
    if rank == 0:
        print(step, loss.item())
final(loss, net)
dist.destroy_process_group()
