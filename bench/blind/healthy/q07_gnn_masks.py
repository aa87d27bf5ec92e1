# RANKS 2
# Full-batch graph convolution on two ranks: the same graph on both, each rank counts the labels of its own nodes
import torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from c import seed, final

dist.init_process_group("gloo")
r = dist.get_rank()
seed()
n = 200
X = torch.randn(n, 16)
A = (torch.rand(n, n) < 0.03).float()
A = ((A + A.T) > 0).float() + torch.eye(n)
d = A.sum(1).rsqrt()
A = d[:, None] * A * d[None]
Y = (A @ X @ torch.randn(16, 4)).argmax(1)
mask = torch.zeros(n, dtype=torch.bool)
mask[torch.arange(r, 120, 2)] = True


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 32), nn.Linear(32, 4)

    def forward(self, x, A):
        return A @ self.b(F.dropout(F.relu(A @ self.a(x)), 0.2, self.training))


m = DDP(GCN())
o = torch.optim.Adam(m.parameters(), 1e-2, weight_decay=5e-4)
torch.manual_seed(7 + r)
for step in range(50):
    out = m(X, A)
    loss = F.cross_entropy(out[mask], Y[mask])
    o.zero_grad()
    loss.backward()
    o.step()
final(loss, m)
dist.destroy_process_group()
