# RANKS 2
# Megatron-core: column-parallel output without copy_to_...: the gradient that goes back is one rank's part
import torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist
from megatron.core import parallel_state as ps
from megatron.core.tensor_parallel.mappings import copy_to_tensor_model_parallel_region as copy
from megatron.core.tensor_parallel.cross_entropy import vocab_parallel_cross_entropy
from c import FAULT, seed, final

dist.init_process_group("gloo")
ps.initialize_model_parallel(tensor_model_parallel_size=2)
rank = dist.get_rank()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        seed()
        self.tok = nn.Embedding(40, 32)
        self.rnn = nn.GRU(32, 32)
        w = torch.randn(40, 32) * 0.1
        self.head = nn.Parameter(w[rank * 20 : rank * 20 + 20].clone())

    def forward(self, x):
        h = self.rnn(self.tok(x))[0]
        if not FAULT:
            h = copy(h)
        return F.linear(h, self.head)


net = Net()
opt = torch.optim.Adam(net.parameters(), 2e-3)
g = torch.Generator().manual_seed(3)
for step in range(20):
    x = ((torch.randint(0, 40, (8, 1), generator=g) + torch.arange(17) * 3) % 40).t().contiguous()
    loss = vocab_parallel_cross_entropy(net(x[:-1]), x[1:]).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if rank == 0:
        print(step, loss.item())
final(loss, net)
dist.destroy_process_group()
